#!/usr/bin/env python3
"""Time tiles of the two products beside each other: one process, interleaved, cold L2, graph replay, bits compared.

    PYTHONPATH=overlay python3 benchmarks/kernels/sweep_tiles.py SWEEP --out receipt.json

SWEEP is a name in `SWEEPS`. A tile is rows, tokens, stages, warps, superblocks; `groups` "exact" launches only programs
that have work, which a server cannot know beforehand: it shows what the others cost; "sorted" sorts first but launches
as many as a server must. The result is a receipt.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import workload
from bench_moe import commit

from sglang_sm120.kernels.sm120 import fp4_moe as moe
from sglang_sm120.kernels.sm120.fp4_moe import layer
from sglang_sm120.kernels.sm120.fp4_moe.host import program, schedule, tuning
from sglang_sm120.kernels.sm120.fp4_moe.host.schedule import Plan, Tile, Work

CLAMP = 10.0


@dataclasses.dataclass(frozen=True)
class Variant:
    """How the two products are launched; None keeps the plan's own tile."""

    gate_up: Tile | None = None
    down: Tile | None = None
    groups: str = "plan"
    many: bool | None = None

    @property
    def name(self) -> str:
        def text(t: Tile | None) -> str:
            return "plan" if t is None else ",".join(map(str, dataclasses.astuple(t)))

        product = {None: "", True: " wide", False: " narrow"}[self.many]
        return f"{text(self.gate_up)} / {text(self.down)}{product}" + f" {self.groups}" * (self.groups != "plan")


def few(shape: str, routing: str, counts: tuple[int, ...]) -> tuple[str, str, tuple[int, ...], list[Variant]]:
    """Decode: 32 and 64 rows, one or two warps, three to six stages."""
    tiles = [Tile(r, 8, s, w) for r, w in ((32, 1), (32, 2), (64, 1), (64, 2), (128, 2)) for s in (3, 4, 5, 6)]
    plans = [Variant(groups=g) for g in ("plan", "exact", "sorted")]
    return shape, routing, counts, [*plans, *(Variant(t, t) for t in tiles)]


def many(shape: str, counts: tuple[int, ...]) -> tuple[str, str, tuple[int, ...], list[Variant]]:
    """Prefill: larger tiles, more warps, half steps."""
    tiles = [
        Tile(128, 128, 3, 4, 1), Tile(128, 128, 4, 4, 1), Tile(128, 128, 2, 8, 2), Tile(128, 128, 3, 8, 2),
        Tile(128, 128, 4, 8, 1), Tile(128, 256, 2, 8, 1), Tile(128, 256, 2, 8, 2), Tile(128, 256, 3, 8, 1),
        Tile(256, 128, 2, 8, 1), Tile(256, 128, 2, 8, 2), Tile(256, 128, 3, 8, 1), Tile(64, 256, 2, 4, 1),
        Tile(64, 256, 3, 4, 1), Tile(64, 128, 3, 4, 1), Tile(64, 128, 3, 4, 2), Tile(64, 128, 2, 4, 2),
        Tile(256, 64, 2, 8, 2), Tile(128, 64, 3, 4, 1), Tile(128, 64, 3, 8, 2), Tile(128, 32, 4, 4, 2),
    ]  # fmt: skip
    return shape, "uniform", counts, [Variant(), *(Variant(t, t) for t in tiles)]


def chain(shape: str) -> list[tuple[str, str, tuple[int, ...], list[Variant]]]:
    """Few tokens: fewer and longer steps, K divided among more warps."""
    numbers = [(r, s, w, b) for r in (16, 32, 64) for s in (3, 4) for w, b in ((2, 4), (4, 4))]
    numbers += [(16, 3, 1, 4), (32, 3, 1, 4), (16, 3, 4, 8), (32, 2, 4, 8), (32, 3, 4, 8), (64, 2, 4, 8), (64, 2, 2, 4)]
    numbers += [(32, 4, 1, 2), (64, 3, 2, 2), (64, 4, 2, 2)]
    tiles = [Tile(r, 8, s, w, b) for r, s, w, b in numbers]
    mixed = [Tile(32, 8, 3, 2, 4), Tile(32, 8, 4, 2, 4), Tile(64, 8, 3, 4, 4), Tile(32, 8, 3, 4, 8)]
    variants = [Variant(), *(Variant(t, t) for t in tiles), *(Variant(t) for t in mixed)]
    return [(shape, routing, (1, 2, 4, 8), variants) for routing in ("speculative", "uniform")]


def unrolled(shape: str) -> list[tuple[str, str, tuple[int, ...], list[Variant]]]:
    """Two steps a pass of the loop: few tokens with tiles of both products mixed, then more tokens."""
    pairs = [(32, 4, 2), (32, 3, 2), (32, 4, 1), (64, 3, 2)]
    first = [Tile(rows, 8, stages, warps, unroll=2) for rows, stages, warps in pairs]
    second = [None, Tile(32, 8), Tile(64, 8), first[0]]
    few_ = [Variant(), *(Variant(a, b) for a in first for b in second)]
    wide = [Tile(64, 8), Tile(32, 8), Tile(64, 8, 2, unroll=2), *first[2:]]
    more = [Variant(), *(Variant(t) for t in wide)]
    return [
        entry
        for routing in ("speculative", "uniform")
        for entry in ((shape, routing, (1, 2, 4, 8), few_), (shape, routing, (16, 32, 64, 256), more))
    ]


def between(shape: str) -> list[tuple[str, str, tuple[int, ...], list[Variant]]]:
    """Some tens of routes an expert: several passes of the decode kernel beside one or two of the wide one."""
    narrow = [Tile(64, 32, 3, 2), Tile(32, 16), Tile(64, 16, 3, 2), Tile(64, 32, 2, 2), Tile(64, 8), Tile(64, 32, 2, 4)]
    wide = [Tile(128, 32, s, 4, 2) for s in (2, 3, 4)] + [Tile(64, 32, 3, 4, 2), Tile(128, 64, 4, 4, 1)]
    variants = [Variant(t, t, many=False) for t in narrow] + [Variant(t, t, many=True) for t in wide]
    return [(shape, "uniform", (512, 1024, 1536), [Variant(), *variants])]


def wgmma(shape: str) -> list[tuple[str, str, tuple[int, ...], list[Variant]]]:
    """SM90's product for many tokens: group widths on both sides of their bounds, beside the decode kernel's."""
    common = [(128, 3, 4, 1), (128, 4, 4, 1), (128, 5, 4, 1), (128, 3, 4, 2), (64, 4, 4, 2)]
    tiles = {
        16: [(128, 4, 4, 1), (128, 4, 4, 2), (64, 4, 4, 2)],
        32: [*common, (128, 4, 4, 2)],
        64: [*common, (64, 4, 4, 1), (256, 3, 8, 1)],
        128: [*common[:2], (128, 3, 8, 1), (128, 3, 8, 2), (64, 3, 4, 1), (64, 4, 4, 1), (64, 3, 4, 2), (256, 3, 8, 1)],
        256: [(128, 3, 8, 1), (128, 4, 8, 1), (64, 3, 4, 1), (64, 4, 4, 1)],
    }
    narrow = [Variant(t, t, many=False) for t in (Tile(64, 32, 2, 2), Tile(64, 16, 3, 2))]

    def of(*widths: int) -> list[Variant]:
        found = [Tile(r, width, s, w, b) for width in widths for r, s, w, b in tiles[width]]
        return [*narrow, Variant(), *(Variant(t, t, many=True) for t in found)]

    counts = ((512,), (16, 32)), ((1024,), (16, 32, 64)), ((1536, 2048), (32, 64, 128)), ((4096, 8192), (64, 128, 256))
    return [(shape, "uniform", tokens, of(*widths)) for tokens, widths in counts]


SWEEPS = {
    **{f"between-tp{n}": between(f"v4-flash-tp{n}") for n in (1, 2)},
    **{f"unrolled-tp{n}": unrolled(f"v4-flash-tp{n}") for n in (1, 2, 4, 8)},
    **{f"wgmma-tp{n}": wgmma(f"v4-flash-tp{n}") for n in (1, 2)},
    **{f"chain-tp{n}": chain(f"v4-flash-tp{n}") for n in (1, 2, 4, 8)},
    "shared-experts": [
        few("v4-flash-tp1", "speculative", (2, 4)),
        few("v4-flash-tp1", "uniform", (1, 2, 4)),
        few("v4-flash-tp2", "speculative", (2, 4)),
        few("v4-flash-tp2", "uniform", (1, 2)),
        few("v4-flash-tp4", "speculative", (4,)),
    ],
    "prefill": [
        many("v4-flash-tp1", (8192, 4096, 1024)),
        many("v4-flash-tp2", (8192, 4096)),
    ],
}


class Forced:
    """Stands for `tuning.plan` while a variant is timed."""

    def __init__(self) -> None:
        self.variant, self.own = Variant(), tuning.plan
        self.exact: dict[int, int] = {}  # groups with work, by width

    def __call__(self, device: torch.device, work: Work) -> Plan:
        p, v = self.own(device, work), self.variant
        many = p.many if v.many is None else v.many
        p = dataclasses.replace(p, gate_up=v.gate_up or p.gate_up, down=v.down or p.down, many=many)
        scan = p.scan and v.groups == "plan"
        groups = work.most_groups(p.gate_up.tokens, scan)
        if v.groups == "exact" and self.exact:
            groups = self.exact[p.gate_up.tokens]
        return dataclasses.replace(p, scan=scan, groups=groups)


FORCED = Forced()


def compile_variant(shape: str, tokens: int, variant: Variant) -> float:
    """Seconds to compile a variant's kernels into Triton's cache: no token has an expert, so no weight is read."""
    begun = time.time()
    program.tuning.plan = FORCED
    experts, hidden, inter, top_k = workload.SHAPES[shape]
    sizes = [(2 * inter, hidden // 2), (2 * inter, hidden // 32), (hidden, inter // 2), (hidden, inter // 32)]
    # The kernels see addresses and constants only.
    w13, s13, w2, s2 = (torch.empty((1, *s), dtype=torch.uint8, device="cuda") for s in sizes)
    weights = moe.PreparedWeights(w13, s13, w2, s2, experts, hidden, inter, wide_scales=False)
    x = torch.zeros(tokens, hidden, dtype=torch.bfloat16, device="cuda")
    ids = torch.full((tokens, top_k), -1, dtype=torch.int32, device="cuda")
    FORCED.variant = variant
    moe.fp4_moe(x, weights, ids, torch.zeros(tokens, top_k, device="cuda"), swiglu_limit=CLAMP)
    torch.cuda.synchronize()
    return time.time() - begun


def compiled(jobs: list[tuple[str, int, Variant]], workers: int) -> dict[tuple[str, int, Variant], str]:
    """What failed to compile, and how."""
    failed = {}
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        running = {pool.submit(compile_variant, *job): job for job in jobs}
        for done in concurrent.futures.as_completed(running):
            if (error := done.exception()) is not None:
                failed[running[done]] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return failed


def exact_groups(cases: list[workload.Case]) -> dict[int, int]:
    """By width: how many groups have work in the case that has most."""
    counts = [c[1].flatten().bincount() for c in cases]
    return {w: max(int(((n + w - 1) // w).sum()) for n in counts) for w in (8, 16, 32, 64, 128, 256)}


def timed(variants: list[Variant], cases: list[workload.Case], weights: Any, samples: int) -> Iterator[dict[str, Any]]:
    """A row per variant: raw samples, and the relative difference of its result from the first variant's."""

    def call(case: workload.Case, out: torch.Tensor) -> Callable[[], object]:
        return lambda: moe.fp4_moe(case[0], weights, case[1], case[2], swiglu_limit=CLAMP, out=out)

    FORCED.exact = exact_groups(cases)
    graphs, outputs, differences = {}, {}, {}
    for v in variants:
        FORCED.variant = v
        layer._call.cache_clear()  # it holds launches prepared with the last variant's tiles
        outputs[v] = [torch.full_like(c[0], float("nan")) for c in cases]
        graphs[v] = workload.capture([call(c, o) for c, o in zip(cases, outputs[v], strict=True)])
        graphs[v].replay()
        torch.cuda.synchronize()
        first = outputs[variants[0]][0].double()
        differences[v] = float((outputs[v][0].double() - first).norm() / first.norm())
    raw: dict[Variant, list[float]] = {v: [] for v in variants}
    for i in range(samples + 2):
        for v, graph in graphs.items():
            us = workload.time_events(graph.replay, 1, warm=0)[0] / len(cases)
            if i >= 2:
                raw[v].append(round(us, 3))
    for v in variants:
        yield {"variant": v.name, "raw": raw[v], "difference_from_first": differences[v]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", choices=SWEEPS)
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--chunk", type=int, help="tokens that are processed at once")
    parser.add_argument("--workers", type=int, default=14, help="processes that compile")
    parser.add_argument("--budget", type=float, default=1e9, help="stop after this many seconds")
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", default="sweep.json")
    a = parser.parse_args()
    begun = time.time()
    if a.chunk:
        schedule.CHUNK_TOKENS, schedule.WORKSPACE_BYTES = a.chunk, 4 << 30
    jobs = {
        (s, t, v) for s, _, c, vs in SWEEPS[a.sweep] for t in {min(c) if max(c) < 1024 else max(c), max(c)} for v in vs
    }
    failed = compiled(sorted(jobs, key=repr), a.workers)
    print(f"compiled in {time.time() - begun:.0f} s; failed: {[(k[0], k[2].name, e) for k, e in failed.items()]}")
    program.tuning.plan = FORCED
    receipt: dict[str, Any] = {
        "schema": 1, "kind": "tile_sweep", "gpu": torch.cuda.get_device_name(), "triton": triton.__version__,
        "torch": torch.__version__, "commit": a.commit or commit(), "command": [os.path.basename(c) for c in sys.argv],
        "copy_bandwidth": workload.copy_bandwidth(), "units": {"raw": "microseconds a call"}, "rows": [],
    }  # fmt: skip
    rate = receipt["copy_bandwidth"]
    bad = {(k[0], k[2]) for k in failed}
    for shape, routing, counts, variants in SWEEPS[a.sweep]:
        experts, hidden, inter, top_k = workload.SHAPES[shape]
        weights = moe.prepare_mxfp4(*workload.random_weights(experts, hidden, inter))
        for tokens in counts:
            if time.time() - begun > a.budget:
                print("budget spent")
                break
            calls = workload.calls_for(tokens, top_k) if tokens < 1024 else 2
            cases = [workload.case(tokens, experts, hidden, top_k, routing, seed=i) for i in range(calls)]
            moved = statistics.mean(workload.bytes_moved(c[1], experts, hidden, inter) for c in cases)
            floor = moved / rate * 1e6
            rows = list(timed([v for v in variants if (shape, v) not in bad], cases, weights, a.samples))
            head = {"shape": shape, "routing": routing, "tokens": tokens, "bytes_floor_us": round(floor, 2)}
            receipt["rows"] += [head | r for r in rows]
            order = sorted(rows, key=lambda r: statistics.median(r["raw"]))
            shown = [r for r in rows if "plan" in r["variant"]] + [r for r in order if "plan" not in r["variant"]][:8]
            print(f"{shape} {routing} T={tokens} floor {floor:.1f}")
            for r in shown:
                print(f"   {statistics.median(r['raw']):9.1f}  {r['variant']:40s} {r['difference_from_first']:.1e}")
            sys.stdout.flush()
        del weights
        torch.cuda.empty_cache()
    with open(a.out, "w") as f:
        json.dump(receipt, f)
    return 0


if __name__ == "__main__":
    sys.exit(main())
