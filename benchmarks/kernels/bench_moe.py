#!/usr/bin/env python3
"""Time the MXFP4 MoE layer against other kernels: one process, interleaved, cold L2, CUDA-graph replay.

    PYTHONPATH=overlay python3 benchmarks/kernels/bench_moe.py --out receipt.json

Both products, activation, sorting and reduction are inside the timed region. Each contestant's output is checked
against float64 on the same weights before its time counts. A row's graph holds several calls with their own experts and
inputs, so that weights come from DRAM; contestants take turns, one replay each, until all have their samples. Floor:
bytes of the experts hit plus input and output over this run's copy bandwidth, or operations over its matrix-product
rate, whichever is larger. The result is a receipt with versions, commit and raw samples.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import triton
import workload
from contestants import CLAMP, CONTESTANTS

from sglang_sm120.kernels.sm120 import mxfp4_moe as moe

TOLERANCE = {"ours mxfp8": 8e-2}  # relative L2; two e4m3 roundings cost about 5e-2
DEFAULT_TOLERANCE = 1e-2  # bf16 intermediates; Marlin's own is 4.7e-3


def check(name: str, contestant: Any, weights: workload.Weights, top_k: int) -> float:
    """Relative L2 error of 16 tokens against float64."""
    experts, _, half = weights[0].shape
    case = workload.case(16, experts, 2 * half, top_k, seed=99)
    got = contestant.call(case)().double()
    want = moe.reference.mxfp4_moe(case[0], *weights, case[1], case[2], swiglu_limit=CLAMP)
    error = float((got - want).norm() / want.norm())
    if not error <= TOLERANCE.get(name, DEFAULT_TOLERANCE):
        raise ValueError(f"relative error {error:.1e}: not timed")
    return error


def graphs_of(contestants: dict[str, Any], cases: list[workload.Case], row: dict[str, Any]) -> dict[str, Any]:
    graphs = {}
    for name, contestant in contestants.items():
        try:
            calls = [contestant.call(c) for c in cases]
            graphs[name] = workload.capture(calls), calls  # the calls own buffers that the graph uses
        except Exception as error:  # noqa: BLE001 - one contestant's failure is a result, not the end of the run
            torch.cuda.synchronize()
            row["failed"][name] = f"{type(error).__name__}: {error}"[:200]
    return graphs


def time_row(shape: str, tokens: int, routing: str, contestants: dict[str, Any], rates: dict[str, float], samples: int):  # type: ignore[no-untyped-def]
    experts, hidden, inter, top_k = workload.SHAPES[shape]
    calls = workload.calls_for(tokens, top_k) if tokens < 1024 else 2
    cases = [workload.case(tokens, experts, hidden, top_k, routing, seed=i) for i in range(calls)]
    moved = statistics.mean(workload.bytes_moved(c[1], experts, hidden, inter) for c in cases)
    operations = 6 * tokens * top_k * hidden * inter
    row: dict[str, Any] = {
        "shape": shape, "tokens": tokens, "routing": routing, "calls": calls, "bytes": moved, "operations": operations,
        "floor_us": max(moved / rates["copy_bandwidth"], operations / rates["matmul_rate"]) * 1e6, "us": {}, "raw": {},
        "failed": {},
    }  # fmt: skip
    graphs = graphs_of(contestants, cases, row)
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
    built, errors = {}, {}
    for name in names:
        try:
            contestant = CONTESTANTS[name](weights)
            errors[name] = check(name, contestant, weights, top_k)
            built[name] = contestant
        except Exception as error:  # noqa: BLE001 - as above
            where = traceback.extract_tb(error.__traceback__)[-1]
            failed[name] = f"{type(error).__name__}: {error} ({where.filename.split('/')[-1]}:{where.lineno})"[:200]
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


def line(row: dict[str, Any], names: list[str]) -> str:
    cells = [
        f"{row['us'][n]:9.1f} ({row['floor_us'] / row['us'][n]:.2f})" if n in row["us"] else " " * 16 for n in names
    ]
    return f"{row['shape']:15s} {row['routing']:11s} T={row['tokens']:5d} floor {row['floor_us']:8.1f}  " + "  ".join(
        cells
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="v4-flash-tp1,v4-flash-tp2,v4-flash-tp4", help="or: all")
    parser.add_argument("--tokens", default="1,2,4,8,16,32,64,128,256,1024,4096,8192")
    parser.add_argument("--routings", default="uniform,speculative,skewed")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--budget", type=float, default=1e9, help="stop after this many seconds")
    parser.add_argument("--commit", default="", help="recorded in the receipt; default: git's")
    parser.add_argument("--out", default="bench_moe.json")
    options = parser.parse_args()
    names = options.contestants.split(",")
    begun = time.time()
    rates = {"copy_bandwidth": workload.copy_bandwidth(), "matmul_rate": workload.matmul_rate()}
    receipt: dict[str, Any] = {
        "schema": 1, "kind": "bench_moe", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": triton.__version__, "python": platform.python_version(), "command": [Path(a).name for a in sys.argv],
        "commit": options.commit or commit(),
        "units": {"us": "median of raw, microseconds a call"}, **rates, "errors": {},
        "host_us": {}, "failed": {}, "rows": [],
    }  # fmt: skip
    print(
        f"{receipt['gpu']}: copy {rates['copy_bandwidth'] / 1e12:.2f} TB/s, "
        f"bf16 {rates['matmul_rate'] / 1e12:.0f} TFLOP/s"
    )
    shapes = list(workload.SHAPES) if options.shapes == "all" else options.shapes.split(",")
    try:
        for shape in shapes:
            experts, hidden, inter, top_k = workload.SHAPES[shape]
            weights = workload.random_weights(experts, hidden, inter)
            contestants, errors = build(weights, names, top_k, receipt["failed"].setdefault(shape, {}))
            receipt["errors"][shape] = errors
            host_case = workload.case(4, experts, hidden, top_k)
            receipt["host_us"][shape] = {n: host_cost(c, host_case) for n, c in contestants.items()}
            print("host us a call, T = 4:", {n: round(v, 1) for n, v in receipt["host_us"][shape].items()})
            print(shape, {n: f"{e:.1e}" for n, e in errors.items()}, receipt["failed"][shape], flush=True)
            for routing in options.routings.split(","):
                for tokens in map(int, options.tokens.split(",")):
                    if time.time() - begun > options.budget:
                        raise TimeoutError
                    row = time_row(shape, tokens, routing, contestants, rates, options.samples)
                    receipt["rows"].append(row)
                    print(line(row, list(contestants)), flush=True)
            del weights, contestants
            gc.collect()
            torch.cuda.empty_cache()
    except TimeoutError:
        print("budget spent: the rest was not run")
    finally:
        with open(options.out, "w") as f:
            json.dump(receipt, f)
    return int(not receipt["rows"])


def commit() -> str:
    root = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
