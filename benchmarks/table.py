#!/usr/bin/env python3
"""Write the tables of benchmarks/README.md from the receipts: times, fractions of the floor, and targets met or missed.

table.py            rewrite the README between its markers
table.py --check    exit status 1 if that would change it
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RECEIPTS = HERE / "receipts"
README = HERE / "README.md"
MARKERS = ("<!-- tables: begin -->", "<!-- tables: end -->")
OURS, PEER = "ours bf16", "triton_kernels"
TARGETS = {  # tokens up to: (times the best peer, fraction of the floor at TP1)
    1: (1.6, 0.50), 4: (1.35, 0.62), 64: (1.15, 0.70), 256: (1.10, 0.70), 8192: (1.0, None),
}  # fmt: skip


def target(tokens: int) -> tuple[float, float | None]:
    return next(TARGETS[limit] for limit in sorted(TARGETS) if tokens <= limit)


def marlin_times(baseline: dict[str, Any]) -> dict[tuple[int, int], float]:
    """(intermediate of one rank, tokens) -> microseconds, from the earlier run of SGLang's Marlin on such a GPU."""
    return {
        (r["inter"], r["tokens"]): r["us"] for run in baseline["runs"] for r in run["rows"] if r["impl"] == "marlin"
    }


def rows_of(receipt: dict[str, Any], routing: str, marlin: dict[tuple[int, int], float]) -> list[str]:
    lines = []
    inter = {"v4-flash-tp1": 2048, "v4-flash-tp2": 1024, "v4-flash-tp4": 512}
    for r in receipt["rows"]:
        if r["routing"] != routing or OURS not in r["us"]:
            continue
        ours, floor = r["us"][OURS], r["floor_us"]
        peers = {PEER: r["us"][PEER]} if PEER in r["us"] else {}
        other = marlin.get((inter[r["shape"]], r["tokens"])) if routing == "uniform" else None
        if other:
            peers["Marlin"] = other
        times, share = target(r["tokens"])
        best = min(peers.values()) / ours if peers else None
        missed = []
        if best is not None and best < times:
            missed.append(f"{times:g}x")
        if share and r["shape"] == "v4-flash-tp1" and floor / ours < share:
            missed.append(f"{share:.2f} of floor")
        lines.append(
            f"| {r['shape'].removeprefix('v4-flash-').upper()} | {r['tokens']} | {floor:.1f} | **{ours:.1f}** | "
            f"{floor / ours:.2f} | "
            f"{r['us'].get(PEER, float('nan')):.1f} | {f'{other:.1f}' if other else '-'} | "
            f"{f'{best:.2f}x' if best else '-'} | {'missed: ' + ', '.join(missed) if missed else 'met'} |"
        )
    return lines


def tables() -> str:
    load = lambda name: json.loads((RECEIPTS / name).read_text())  # noqa: E731 - one use, one line
    uniform, routings, baseline = (
        load(f"h200-{n}.json") for n in ("bench-uniform", "bench-routings", "peers-baseline")
    )
    marlin = marlin_times(baseline)
    head = (
        "| | T | floor µs | ours µs | of floor | triton_kernels µs | Marlin µs | times the best | targets |\n"
        + "|---" * 9
        + "|"
    )
    parts = []
    for receipt, routing in ((uniform, "uniform"), (routings, "speculative"), (routings, "skewed")):
        parts += [
            f"### {routing.capitalize()} routing",
            f"{receipt['gpu']}, Triton {receipt['triton']}, torch {receipt['torch']}, "
            f"commit {receipt['commit'][:10]}; copy "
            f"{receipt['copy_bandwidth'] / 1e12:.2f} TB/s, bf16 {receipt['matmul_rate'] / 1e12:.0f} TFLOP/s.",
            "",
            head,
            *rows_of(receipt, routing, marlin),
            "",
        ]
    host = {shape: times.get(OURS) for shape, times in uniform["host_us"].items()}
    parts.append(
        "Host time a call without a graph, T = 4: "
        + ", ".join(f"{s} {t:.0f} µs" for s, t in host.items() if t)
        + " (target 40: missed)."
    )
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    readme = README.read_text()
    begin, end = (readme.index(marker) for marker in MARKERS)
    new = readme[: begin + len(MARKERS[0])] + "\n" + tables() + "\n" + readme[end:]
    if options.check:
        return int(new != readme)
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
