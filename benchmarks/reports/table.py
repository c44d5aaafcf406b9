#!/usr/bin/env python3
"""Write the tables of benchmarks/README.md from the receipts: times, fractions of the floor, and targets met or missed.

table.py            rewrite benchmarks/README.md between its markers
table.py --check    exit status 1 if that would change it

Rows come from `h200-table.json` (`bench_moe.py --rows table`) and, if that is there, `h200-shapes.json` (`--rows
shapes`). A second run of the same commit beside one, `*-2.json`, shows which rows repeat.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.reports import compare, receipts

HERE = Path(__file__).resolve().parents[1]
RECEIPTS = HERE / "receipts"
README = HERE / "README.md"
MARKERS = ("<!-- tables: begin -->", "<!-- tables: end -->")
OURS, FP8, NAIVE = "ours bf16", "ours mxfp8", "naive dot_scaled"
PEERS = {  # contestant -> column
    "triton_kernels": "triton_kernels", "marlin": "Marlin", "flashinfer sm90 mixed": "FlashInfer", "humming": "humming",
}  # fmt: skip
TARGETS = {  # tokens up to: (times the best peer, fraction of the floor at TP1)
    1: (1.6, 0.50), 4: (1.35, 0.62), 64: (1.15, 0.70), 256: (1.10, 0.70), 8192: (1.0, None),
}  # fmt: skip
HOST_US = 40  # of Python a call
NAMES = {"v4-flash": "", "v4-pro": "V4-Pro ", "v4.1-flash": "V4.1-Flash "}
Row = dict[str, Any]


def load(name: str) -> Row | None:
    path = RECEIPTS / f"{name}.json"
    return receipts.receipt(path) if path.exists() else None


def target(tokens: int) -> tuple[float, float | None]:
    return next(TARGETS[limit] for limit in sorted(TARGETS) if tokens <= limit)


def short(shape: str) -> str:
    model, rank = shape.rsplit("-", 1)
    return NAMES[model] + rank.upper()


def verdict(row: Row) -> tuple[str, str]:
    """Times the fastest peer of the row, and which targets it misses."""
    ours = row["us"][OURS]
    peers = [row["us"][p] for p in PEERS if p in row["us"]]
    times, share = target(row["tokens"])
    missed = []
    if peers and min(peers) / ours < times:
        missed.append(f"{times:.2f}x the best")
    if share and row["shape"] == "v4-flash-tp1" and row["floor_us"] / ours < share:
        missed.append(f"{share:.2f} of floor")
    best = f"{min(peers) / ours:.2f}x" if peers else "-"
    return best, "missed: " + ", ".join(missed) if missed else "met" if peers else "no peer"


def table(rows: list[Row]) -> list[str]:
    """Markdown of the rows that have a time of ours; a column for each other contestant that ran in one of them."""
    rows = [r for r in rows if OURS in r["us"]]
    others = [n for n in (FP8, *PEERS, NAIVE) if any(n in r["us"] for r in rows)]
    titles = {FP8: "ours mxfp8", NAIVE: "naive", **PEERS}
    head = [
        "",
        "T",
        "floor µs",
        "ours µs",
        "of floor",
        *(f"{titles[n]} µs" for n in others),
        "times the best",
        "targets",
    ]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for r in rows:
        ours = r["us"][OURS]
        cells = [short(r["shape"]), str(r["tokens"]), f"{r['floor_us']:.1f}", f"**{ours:.1f}**"]
        cells += [f"{r['floor_us'] / ours:.2f}"]
        cells += [f"{r['us'][n]:.1f}" if n in r["us"] else "-" for n in others]
        lines.append("| " + " | ".join([*cells, *verdict(r)]) + " |")
    return lines


def source(receipt: Row) -> str:
    extra = "".join(f", {k} {v}" for k, v in receipt.get("versions", {}).items() if v != "not installed")
    return (
        f"{receipt['gpu']}, Triton {receipt['triton']}, torch {receipt['torch']}{extra}, "
        f"commit {receipt['commit'][:10]}; copy {receipt['copy_bandwidth'] / 1e12:.2f} TB/s, "
        f"bf16 {receipt['matmul_rate'] / 1e12:.0f} TFLOP/s."
    )


def repeated(first: Row, second: Row | None) -> list[str]:
    """What a second run of the same commit says, one line a contestant."""
    if second is None:
        return []
    found = compare.repeats(first, second)
    lines = [f"A second run of commit {first['commit'][:10]}, {len(second['rows'])} rows:"]
    for name in dict.fromkeys(name for _, name, *_ in found):
        mine = [(k, a, b, same) for k, n, a, b, same in found if n == name]
        apart = [f"{short(k[0])} {k[1]} T={k[2]} ({b / a - 1:+.1%})" for k, a, b, same in mine if not same]
        tail = f"; not: {', '.join(apart)}" if apart else ""
        lines.append(f"* {name}: {len(mine) - len(apart)} of {len(mine)} rows agree{tail}")
    return [*lines, ""]


def failures(receipt: Row) -> list[str]:
    """One line for each contestant and reason that kept it out of a shape or a row."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for shape, failed in receipt["failed"].items():
        for name, why in failed.items():
            reasons.setdefault((name, why), []).append(short(shape))
    for r in receipt["rows"]:
        for name, why in r["failed"].items():
            reasons.setdefault((name, why), []).append(f"{short(r['shape'])} {r['routing']} T={r['tokens']}")
    return [f"* {name}, {', '.join(where)}: {why}" for (name, why), where in reasons.items()]


def section(title: str, receipt: Row, rows: list[Row]) -> list[str]:
    return [f"### {title}", source(receipt), "", *table(rows), ""]


def legend() -> str:
    """The targets, in a sentence."""
    parts, above = [], 0
    for limit, (times, share) in TARGETS.items():
        tokens = f"{above + 1} to {limit} tokens" if limit > above + 1 else "1 token"
        parts.append(f"{tokens} {times:.2f}x" + (f" and {share:.2f}" if share else ""))
        above = limit
    return f"Targets, times the best peer of the row and (V4-Flash at TP1 only) of the floor: {'; '.join(parts)}."


def host_line(run: Row) -> str:
    """The host's time a call in the race, and Python's share of it, which is what the target is about."""
    times = {short(shape): us[OURS] for shape, us in run["host_us"].items() if OURS in us}
    text = "Host time a call without a graph, bf16, T = 4: " + ", ".join(f"{s} {t:.0f} µs" for s, t in times.items())
    python = RECEIPTS / "cpu-host-cost.json"
    if not python.exists():
        return text + "."
    worst = max(row["best_us"] for row in json.loads(python.read_text())["rows"])
    verdict = "met" if worst <= HOST_US else "missed"
    return f"{text}; of that Python, up to the driver, at most {worst:.0f} µs (target {HOST_US}: {verdict})."


def tables() -> str:
    run = load("h200-table")
    if run is None:
        raise FileNotFoundError(RECEIPTS / "h200-table.json")
    parts = [legend(), ""]
    for routing in ("uniform", "speculative", "skewed"):
        parts += section(f"{routing.capitalize()} routing", run, [r for r in run["rows"] if r["routing"] == routing])
    parts, not_timed = parts + repeated(run, load("h200-table-2")), failures(run)
    if (shapes := load("h200-shapes")) is not None:
        parts += section("Other shapes, uniform routing", shapes, shapes["rows"])
        parts += repeated(shapes, load("h200-shapes-2"))
        not_timed += failures(shapes)
    parts += ["Not timed:", *not_timed, ""] if not_timed else []
    parts.append(host_line(run))
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
