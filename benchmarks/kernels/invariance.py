#!/usr/bin/env python3
"""What `batch_invariant` costs at each number of tokens, and whether a token keeps its bits; every plan that could be.

    PYTHONPATH=overlay python3 benchmarks/kernels/invariance.py --out receipt.json [--shapes …] [--formats …] [--quick]

Plans: `plain` (not invariant), `few` (the tiles for few tokens throughout) and `wgmma` (SM90: wgmma throughout). Times:
CUDA graphs of several calls with their own experts, interleaved, medians of microseconds a call. Bits: the first and
last rows of a batch of 4096 tokens beside the same rows in smaller batches. Needs a GPU; about half a minute a shape
and format. Exit status 1 where an invariant plan does not keep bits, or is not close to the plain one.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import triton
import workload

from sglang_sm120.kernels.sm120 import fp4_moe as moe
from sglang_sm120.kernels.sm120.fp4_moe import layer, warming
from sglang_sm120.kernels.sm120.fp4_moe.host import schedule, tuning

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.reports.commit import commit

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
QUICK = (1, 4, 16, 64, 256, 1024, 4096)
PLANS = {"plain": (False, True), "few": (True, False), "wgmma": (True, True)}  # invariant, wgmma throughout
CLOSE = 1e-2  # relative to the plain plan: bf16 intermediates round differently
REPLAYS = 20


def take(name: str) -> dict[str, Any]:
    """Make this plan the one that calls get from now on; the call's options."""
    invariant, throughout = PLANS[name]
    schedule.has_wgmma_throughout = lambda sm90: sm90 and throughout
    for cached in (schedule.plan, tuning._plan, layer._call, warming._warm_up):
        cached.cache_clear()
    return {"batch_invariant": invariant}


def names_here() -> list[str]:
    """The plans that this GPU tells apart."""
    return [n for n in PLANS if n != "wgmma" or torch.cuda.get_device_capability()[0] == 9]


def bits(w: Any, case: Any, counts: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """Of each plan: numbers of tokens with which a row of the largest batch has other bits; its distance to plain."""
    x, ids, weights = case
    found: dict[str, dict[str, Any]] = {}
    results = {}
    for name in names_here():
        options = take(name)
        moe.warm_up(w, ids.shape[1], x.shape[0], **options)
        whole = results[name] = moe.fp4_moe(x, w, ids, weights, **options)
        changed = []
        for count in counts[:-1]:
            for start in (0, x.shape[0] - count):
                part = slice(start, start + count)
                got = moe.fp4_moe(x[part], w, ids[part], weights[part], **options)
                if not torch.equal(got, whole[part]) and count not in changed:
                    changed.append(count)
        apart = float((whole.double() - results["plain"].double()).norm() / results["plain"].double().norm())
        found[name] = {"changed": changed, "apart": apart}
    if "wgmma" in results:
        found["wgmma"]["same_bits_as_few"] = bool(torch.equal(results["wgmma"], results["few"]))
    return found


def times(w: Any, shape: tuple[int, ...], tokens: int) -> dict[str, list[float]]:
    """Microseconds a call of each plan, one sample a replay, plans in turn."""
    experts, hidden, _, top_k = shape
    cases = [workload.case(tokens, experts, hidden, top_k, seed=n) for n in range(workload.calls_for(tokens, top_k))]
    graphs = {}
    for name in names_here():
        options = take(name)
        outs = [torch.empty_like(x) for x, _, _ in cases]
        calls = [
            lambda c=c, out=out, options=options: moe.fp4_moe(c[0], w, c[1], c[2], out=out, **options)
            for c, out in zip(cases, outs, strict=True)
        ]
        graphs[name] = workload.capture(calls)
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for n in range(REPLAYS + 2):
        for name, graph in graphs.items():
            (us,) = workload.time_events(graph.replay, 1, warm=0)
            if n >= 2:
                samples[name].append(us / len(cases))
    return samples


def tiles_of(shape: tuple[int, ...], weights: Any, tokens: int) -> dict[str, str]:
    """The tiles of each plan, in words."""
    experts, hidden, inter, top_k = shape
    found = {}
    for name in names_here():
        invariant = take(name)["batch_invariant"]
        work = schedule.Work(tokens, top_k, experts, hidden, inter, invariant=invariant, format=weights)
        p = tuning.plan(torch.device("cuda", torch.cuda.current_device()), work)
        found[name] = f"{'many' if p.many else 'few'} " + ", ".join(
            f"{t.rows}x{t.tokens} SB{t.superblocks} {t.warps}w{t.stages}s" for t in (p.gate_up, p.down)
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shapes", default="v4-flash-tp1,v4-flash-tp4")
    parser.add_argument("--formats", default="mxfp4,nvfp4")
    parser.add_argument("--quick", action="store_true", help="fewer numbers of tokens")
    parser.add_argument("--commit")
    a = parser.parse_args()
    counts, begun = QUICK if a.quick else TOKENS, time.monotonic()
    receipt: dict[str, Any] = {
        "schema": 1, "kind": "invariance", "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": a.commit or commit(), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": triton.__version__, "python": platform.python_version(), "rows": [], "bits": [],
    }  # fmt: skip
    lines, wrong = [], []
    for shape_name in a.shapes.split(","):
        shape = workload.SHAPES[shape_name]
        experts, hidden, inter, top_k = shape
        for weights in a.formats.split(","):
            prepare = {"mxfp4": moe.prepare_mxfp4, "nvfp4": moe.prepare_nvfp4}[weights]
            w = prepare(*workload.random_weights(experts, hidden, inter, weights))
            if weights == "nvfp4" and w.format.name != "nvfp4":
                raise SystemExit("the random NVFP4 weights are a cast of MXFP4")
            found = bits(w, workload.case(counts[-1], experts, hidden, top_k), counts)
            receipt["bits"].append({"shape": shape_name, "format": weights, "plans": found})
            for name, of in found.items():
                lines.append(f"bits   {shape_name} {weights} {name}: {of}")
                if name != "plain" and (of["changed"] or not of["apart"] < CLOSE):
                    wrong.append(lines[-1])
            for tokens in counts:
                samples = times(w, shape, tokens)
                middle = {name: statistics.median(s) for name, s in samples.items()}
                row = {"shape": shape_name, "format": weights, "tokens": tokens, "us": middle, "samples": samples}
                receipt["rows"].append(row | {"tiles": tiles_of(shape, w.format, tokens)})
                ratios = ", ".join(f"{n} {us:8.1f} ({us / middle['plain']:.2f})" for n, us in middle.items())
                lines.append(f"times  {shape_name} {weights} T={tokens:<5} {ratios}  {receipt['rows'][-1]['tiles']}")
                print(lines[-1], flush=True)
            del w
            torch.cuda.empty_cache()
    receipt["seconds"] = round(time.monotonic() - begun, 1)
    if a.out:
        a.out.parent.mkdir(parents=True, exist_ok=True)
        a.out.write_text(json.dumps(receipt, indent=1) + "\n")
    print("\n".join(["", *lines, *(f"WRONG  {line}" for line in wrong), f"{receipt['seconds']} s"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
