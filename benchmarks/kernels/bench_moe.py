#!/usr/bin/env python3
"""Time the MoE layer against other kernels: one process, interleaved, cold L2, CUDA-graph replay.

    PYTHONPATH=overlay python3 benchmarks/kernels/bench_moe.py --rows table --rehearse 12 --out receipt.json
    … bench_moe.py --format nvfp4 --shapes v4-flash-tp1,v4-flash-tp2 --routings uniform --rehearse 12
    … bench_moe.py --rows first,routings,rest --rehearse 12 --budget 900    every shape: what says most comes first

Both products, activation, sorting and reduction are inside the timed region. Each contestant's output is checked
against float64 on the same weights before its time counts, for the shape and in each row. A row's graph holds several
calls with their own experts and inputs, so that weights come from DRAM; contestants take turns, one replay each, until
all have their samples. Floor: bytes of the experts hit plus input and output over this run's copy bandwidth, or
operations over its matrix-product rate, whichever is larger. The result is a receipt with versions, commit, raw
samples and the rows that the budget left out; it is written anew after each shape.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import platform
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import rehearsal
import torch
import triton
import workload
from contestants import CLAMP, CONTESTANTS, versions
from profiles import PROFILES, TOKENS, Row, rows_asked

from sglang_sm120.kernels.sm120 import fp4_moe as moe

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.reports import short
from benchmarks.reports.commit import commit

TOLERANCE = {"ours mxfp8": 8e-2}  # relative L2; two e4m3 roundings cost about 5e-2
DEFAULT_TOLERANCE = 1e-2  # bf16 intermediates; Marlin's own is 4.7e-3
CHECKED_TOKENS = 16  # before a shape's rows
ROW_CHECKED_TOKENS = 4  # in each row, for other kernels run at other token counts


class Check:
    """Relative L2 error against float64, of `count` tokens of one case, spread over it."""

    def __init__(self, weights: workload.Weights, case: workload.Case, count: int) -> None:
        x, ids, probabilities = self.case = case
        self.tokens = torch.linspace(0, len(x) - 1, min(count, len(x)), device=x.device).long()
        picked = x[self.tokens], *weights, ids[self.tokens], probabilities[self.tokens]
        reference = moe.reference.nvfp4_moe if len(weights) == 6 else moe.reference.mxfp4_moe
        self.want = reference(*picked, swiglu_limit=CLAMP)

    def error(self, name: str, got: torch.Tensor) -> float:
        """Raises ValueError beyond the contestant's tolerance."""
        error = float((got[self.tokens].double() - self.want).norm() / self.want.norm())
        if not error <= TOLERANCE.get(name, DEFAULT_TOLERANCE):
            raise ValueError(f"relative error {error:.1e}: not timed")
        return error


def graphs_of(contestants: dict[str, Any], cases: list[workload.Case], check: Check, row: dict[str, Any]) -> dict:
    graphs = {}
    for name, contestant in contestants.items():
        try:
            calls = [contestant.call(c) for c in cases]
            row["errors"][name] = check.error(name, calls[0]())
            graphs[name] = workload.capture(calls), calls  # the calls own buffers that the graph uses
        except Exception as error:  # noqa: BLE001 - one contestant's failure is a result, not the end of the run
            torch.cuda.synchronize()
            row["failed"][name] = f"{type(error).__name__}: {error}"[:200]
    return graphs


def time_row(
    key: Row, contestants: dict[str, Any], weights: workload.Weights, receipt: dict[str, Any], samples: int
) -> dict[str, Any]:
    shape, routing, tokens = key
    experts, hidden, inter, top_k = workload.SHAPES[shape]
    calls = workload.calls_for(tokens, top_k) if tokens < 1024 else 2
    cases = [workload.case(tokens, experts, hidden, top_k, routing, seed=i) for i in range(calls)]
    moved = statistics.mean(workload.bytes_moved(c[1], experts, hidden, inter, receipt["format"]) for c in cases)
    operations = 6 * tokens * top_k * hidden * inter
    row: dict[str, Any] = {
        "format": receipt["format"], "shape": shape, "tokens": tokens, "routing": routing, "calls": calls,
        "bytes": moved, "operations": operations,
        "floor_us": max(moved / receipt["copy_bandwidth"], operations / receipt["matmul_rate"]) * 1e6,
        "us": {}, "raw": {}, "errors": {}, "failed": {},
    }  # fmt: skip
    graphs = graphs_of(contestants, cases, Check(weights, cases[0], ROW_CHECKED_TOKENS), row)
    raw: dict[str, list[float]] = {name: [] for name in graphs}
    for i in range(samples + 2):
        for name, (graph, _) in graphs.items():
            time_us = workload.time_events(graph.replay, 1, warm=0)[0] / calls
            if i >= 2:
                raw[name].append(time_us)
    row["raw"] = raw
    row["us"] = {name: statistics.median(times) for name, times in raw.items()}
    return row


def build(weights: workload.Weights, names: list[str], top_k: int, failed: dict[str, str]) -> tuple[dict, dict]:
    """The contestants that built and passed the check, and their errors; `failed` gets why the others did not."""
    built: dict[str, Any] = {}
    errors: dict[str, float] = {}
    shared: dict[str, Any] = {}
    experts, _, half = weights[0].shape
    check = Check(weights, workload.case(CHECKED_TOKENS, experts, 2 * half, top_k, seed=99), CHECKED_TOKENS)
    for name in names:
        if name in failed:
            continue
        try:
            contestant = CONTESTANTS[name].make(weights, shared)
            errors[name] = check.error(name, contestant.call(check.case)())
            built[name] = contestant
        except Exception as error:  # noqa: BLE001 - as above
            where = traceback.extract_tb(error.__traceback__)[-1]
            failed[name] = f"{type(error).__name__}: {error} ({where.filename.split('/')[-1]}:{where.lineno})"[:300]
    return built, errors


def host_cost(contestant: Any, case: workload.Case, calls: int = 100) -> float:
    """Microseconds of Python and launches per call without a graph: queued without waiting, best of five runs."""
    call, best = contestant.call(case), float("inf")
    for _ in range(6):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begun) / calls * 1e6)
    return best


def out_of_time(deadline: float) -> bool:
    return time.time() > deadline


def line(row: dict[str, Any], names: list[str]) -> str:
    cells = [
        f"{row['us'][n]:9.1f} ({row['floor_us'] / row['us'][n]:.2f})" if n in row["us"] else " " * 16 for n in names
    ]
    return f"{row['shape']:15s} {row['routing']:11s} T={row['tokens']:5d} floor {row['floor_us']:8.1f}  " + "  ".join(
        cells
    )


def run_shape(shape: str, rows: list[Row], names: list[str], receipt: dict[str, Any], options: Any) -> None:
    """Build, check and time one shape's rows into the receipt; its weights are freed when this returns."""
    experts, hidden, inter, top_k = workload.SHAPES[shape]
    weights = workload.random_weights(experts, hidden, inter, options.format)
    failed = receipt["failed"].setdefault(shape, {})
    contestants, receipt["errors"][shape] = build(weights, names, top_k, failed)
    host_case = workload.case(4, experts, hidden, top_k)
    receipt["host_us"][shape] = {n: host_cost(c, host_case) for n, c in contestants.items()}
    print(shape, "relative errors", {n: f"{e:.1e}" for n, e in receipt["errors"][shape].items()})
    print("host us a call, T = 4:", {n: round(v, 1) for n, v in receipt["host_us"][shape].items()})
    for name, why in failed.items():
        print(f"  {name}: failed: {why}")
    print(" " * 56 + "  ".join(f"{n:>16.16s}" for n in contestants), flush=True)
    for key in rows:
        if out_of_time(options.deadline):
            raise TimeoutError
        samples = options.samples if key[2] <= 256 else min(options.samples, 7)
        row = time_row(key, contestants, weights, receipt, samples)
        receipt["rows"].append(row)
        print(line(row, list(contestants)), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=workload.FORMATS, default="mxfp4", help="of the weights")
    parser.add_argument(
        "--rows", help=f"sets of rows in turn, of which --shapes picks those of its shapes: {', '.join(PROFILES)}"
    )
    parser.add_argument("--shapes", help="or: all; default: all of --rows, else V4-Flash at TP1, TP2 and TP4")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--routings", default=",".join(workload.ROUTINGS))
    parser.add_argument("--contestants", help="default: most of those that take the format")
    parser.add_argument("--samples", type=int, default=15, help="a row; at most 7 from 1024 tokens on")
    parser.add_argument("--rehearse", type=int, default=0, help="first run all in so many processes: compiles, crashes")
    parser.add_argument("--budget", type=float, default=1e9, help="stop after this many seconds")
    parser.add_argument("--commit", default="", help="recorded in the receipt; default: git's")
    parser.add_argument("--out", default="bench_moe.json")
    return parser.parse_args()


def names_asked(options: argparse.Namespace) -> list[str]:
    """Raises SystemExit for a contestant that there is not, or not for the format."""
    able = [n for n, c in CONTESTANTS.items() if options.format in c.formats]
    if options.contestants is None:
        return [n for n in able if CONTESTANTS[n].default]
    names = options.contestants.split(",")
    for name in names:
        if name not in able:
            raise SystemExit(f"--contestants names {name!r}, expected some of {', '.join(able)} for {options.format}")
    return names


def rehearsed(rows: list[Row], names: list[str], receipt: dict[str, Any], options: argparse.Namespace) -> None:
    """Contestants that end in an error or a crash are known, and left out, before anything is timed."""
    if not options.rehearse:
        return
    begun = time.time()
    seconds = (options.deadline - begun) / 2
    failed = rehearsal.rehearse(rows, names, options.rehearse, options.format, seconds)
    for shape, why in failed.items():
        receipt["failed"].setdefault(shape, {}).update(why)
    print(f"rehearsed in {time.time() - begun:.0f} s: {failed}", flush=True)


def save(receipt: dict[str, Any], sets: list[list[Row]], options: argparse.Namespace, begun: float) -> None:
    """Write the receipt with what was not run, whole at any moment."""
    done = [(r["shape"], r["routing"], r["tokens"]) for r in receipt["rows"]]
    receipt["not_run"] = [row for rows in sets for row in rows if row not in done]
    receipt["seconds"] = time.time() - begun
    partial = Path(f"{options.out}.partial")
    partial.write_text(json.dumps(receipt))
    partial.replace(options.out)


def main() -> int:
    options, begun = parsed(), time.time()
    options.deadline = begun + options.budget
    names, sets = names_asked(options), rows_asked(options)
    receipt: dict[str, Any] = {
        "schema": 2, "kind": "bench_moe", "format": options.format, "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__, "python": platform.python_version(), "command": [Path(a).name for a in sys.argv],
        "versions": versions(names), "commit": options.commit or commit(),
        "units": {"us": "median of raw, microseconds a call"}, "errors": {}, "host_us": {}, "failed": {}, "rows": [],
    }  # fmt: skip
    try:
        receipt |= {"copy_bandwidth": workload.copy_bandwidth(), "matmul_rate": workload.matmul_rate()}
        print(
            f"{receipt['gpu']}: copy {receipt['copy_bandwidth'] / 1e12:.2f} TB/s, "
            f"bf16 {receipt['matmul_rate'] / 1e12:.0f} TFLOP/s"
        )
        torch.cuda.empty_cache()  # the rehearsals need the memory
        for rows in sets:
            rehearsed(rows, names, receipt, options)
            for shape, group in itertools.groupby(rows, lambda row: row[0]):
                run_shape(shape, list(group), names, receipt, options)
                gc.collect()
                torch.cuda.empty_cache()
                print(f"{time.time() - begun:.0f} s", flush=True)
                save(receipt, sets, options, begun)
    except TimeoutError:
        print("budget spent: the rest was not run")
    finally:
        save(receipt, sets, options, begun)
    print(short.table(receipt))
    return int(not receipt["rows"])


if __name__ == "__main__":
    sys.exit(main())
