"""Kernels against each other, from the receipts of `bench_moe.py`: times, fractions of the floor, targets met or missed.

Rows come from `h200-table.json` (`bench_moe.py --rows table`) and, if that is there, `h200-shapes.json` (`--rows
shapes`). A second run of the same commit beside one, `*-2.json`, shows which rows repeat.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import compare
import reading

from pages.markdown import markdown_table

RECEIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "receipts"
OURS, FP8, NAIVE = "ours bf16", "ours mxfp8", "naive dot_scaled"
PEERS = {  # contestant -> column
    "triton_kernels": "triton_kernels", "marlin": "Marlin", "flashinfer sm90 mixed": "FlashInfer", "humming": "humming",
}  # fmt: skip
TARGETS = {  # tokens up to: (times the best peer, fraction of the floor at TP1)
    1: (1.6, 0.50), 4: (1.35, 0.62), 64: (1.15, 0.70), 256: (1.10, 0.70), 8192: (1.0, None),
}  # fmt: skip
HOST_US = 40  # of Python a call
NAMES = {"v4-flash": "", "v4-pro": "V4-Pro ", "v4.1-flash": "V4.1-Flash "}
SHOWN, ROUTING = "v4-flash-tp2", "uniform"  # what benchmarks/README.md shows of a race
Row = dict[str, Any]


def load(name: str) -> Row | None:
    path = RECEIPTS / f"{name}.json"
    return reading.receipt(path) if path.exists() else None


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


def table(rows: list[Row]) -> str:
    """The rows that have a time of ours; a column for each other contestant that ran in one of them."""
    rows = [r for r in rows if OURS in r["us"]]
    others = [n for n in (FP8, *PEERS, NAIVE) if any(n in r["us"] for r in rows)]
    titles = {FP8: "ours mxfp8", NAIVE: "naive", **PEERS}
    head = ["layer", "tokens", "floor µs", "ours µs", "of floor", *(f"{titles[n]} µs" for n in others)]
    cells = []
    for r in rows:
        ours = r["us"][OURS]
        times = [f"{r['us'][n]:.1f}" if n in r["us"] else "-" for n in others]
        own = (short(r["shape"]), r["tokens"], f"{r['floor_us']:.1f}", f"**{ours:.1f}**", f"{r['floor_us'] / ours:.2f}")
        cells.append([*own, *times, *verdict(r)])
    return markdown_table([*head, "times the best", "targets"], cells)


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
    lines = [f"A second run of commit {first['commit'][:10]}, {len(second['rows'])} rows:", ""]
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
    return [f"## {title}", "", source(receipt), "", table(rows), ""]


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


def _race() -> Row:
    run = load("h200-table")
    if run is None:
        raise FileNotFoundError(RECEIPTS / "h200-table.json")
    return run


def tables() -> str:
    """The page with every row, `benchmarks/receipts/h200-tables.md`."""
    run = _race()
    parts = ["# Every row of the races", "", "Generated by `scripts/docs.py`; `benchmarks/README.md` says what is raced.", ""]
    parts += [legend(), ""]
    for routing in ("uniform", "speculative", "skewed"):
        parts += section(f"{routing.capitalize()} routing", run, [r for r in run["rows"] if r["routing"] == routing])
    parts, not_timed = parts + repeated(run, load("h200-table-2")), failures(run)
    if (shapes := load("h200-shapes")) is not None:
        parts += section("Other shapes, uniform routing", shapes, shapes["rows"])
        parts += repeated(shapes, load("h200-shapes-2"))
        not_timed += failures(shapes)
    parts += ["Not timed:", "", *not_timed, ""] if not_timed else []
    parts.append(host_line(run))
    return "\n".join(parts)


def shown() -> str:
    """One layer in full: `SHOWN`, `ROUTING`."""
    run = _race()
    return f"{source(run)}\n\n{table([r for r in run['rows'] if (r['shape'], r['routing']) == (SHOWN, ROUTING)])}"


def summary() -> str:
    """Fraction of the floor and times the fastest peer, for each rank of V4-Flash."""
    rows = [r for r in _race()["rows"] if r["routing"] == ROUTING and OURS in r["us"]]
    shapes = list(dict.fromkeys(r["shape"] for r in rows))
    at = {(r["tokens"], r["shape"]): f"{r['floor_us'] / r['us'][OURS]:.2f}, {verdict(r)[0]}" for r in rows}
    tokens = sorted({r["tokens"] for r in rows})
    return markdown_table(["tokens", *map(short, shapes)], [[t, *(at.get((t, s), "-") for s in shapes)] for t in tokens])


def missed() -> str:
    """The rows of all races that miss a target."""
    runs = [run for run in (_race(), load("h200-shapes")) if run is not None]
    rows = [
        (f"{short(r['shape'])}, {r['routing']}", r["tokens"], f"{r['floor_us'] / r['us'][OURS]:.2f}", *verdict(r))
        for run in runs
        for r in run["rows"]
        if OURS in r["us"] and verdict(r)[1].startswith("missed")
    ]
    return markdown_table(("layer", "tokens", "of floor", "times the best", "target"), rows)
