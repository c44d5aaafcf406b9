"""A table of runners as text: who is right, how fast at each number of tokens, and what the floor is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sglang_sm120 import files
from sglang_sm120.commands import picture
from sglang_sm120.commands.tune import tables
from sglang_sm120.moe import runner_tables
from sglang_sm120.moe.runner_tables import EQUAL_SCALES, RIGHT

_CELL = 13  # columns of `1234.5 +-12.3`
_SHOWN = (RIGHT, EQUAL_SCALES, "unsteady")


def render(document: dict[str, Any]) -> str:
    """For people; a column for each runner that has times."""
    lines = []
    if document.get("gpu"):
        lines.append(f"GPU     {document['gpu']}, SGLang {document['sglang']}, sglang-sm120 {document['overlay']}")
    if document.get("table"):
        lines.append(f"runners {files.short(document['table'])}")
    for entry in document["layers"]:
        lines += ["", *_layer(entry)]
    lines += tables.closing(document)
    return "\n".join(lines)


def pictures(document: dict[str, Any]) -> dict[str, str]:
    """Name of a layer -> chart of its runners and the floor."""
    found = {}
    for entry in document["layers"]:
        layer = str(runner_tables.layer_of(entry))
        timed = [row for row in entry["runners"] if row["status"] in _SHOWN and row.get("times")]
        lines = {row["runner"]: [(t["tokens"], t["us"]) for t in row["times"]] for row in timed}
        lines["floor"] = [(f["tokens"], f["us"]) for f in entry.get("floor", [])]
        title = f"{layer}, {document['gpu']}, SGLang {document['sglang']}"
        found[layer] = picture.chart(title, "tokens", "µs of a layer", {n: line for n, line in lines.items() if line})
    return found


def _layer(entry: dict[str, Any]) -> Iterable[str]:
    yield f"{runner_tables.layer_of(entry)}; microseconds of a layer, median (half of the samples within +-)"
    timed = [row for row in entry["runners"] if row["status"] in _SHOWN and row.get("times")]
    floor = {f["tokens"]: f["us"] for f in entry.get("floor", [])}
    if timed:
        yield "  " + f"{'T':>5} {'floor':>7}" + "".join(f" {row['runner']:>{_CELL}}" for row in timed)
    for tokens in sorted({t["tokens"] for row in timed for t in row["times"]}):
        cells = []
        for row in timed:
            found = next((t for t in row["times"] if t["tokens"] == tokens), None)
            cells.append(f"{found['us']:.1f} +-{(found['high'] - found['low']) / 2:.1f}" if found else "")
        low = f"{floor[tokens]:.1f}" if tokens in floor else ""
        yield (
            "  "
            + f"{tokens:>5} {low:>7}"
            + "".join(f" {cell:>{max(_CELL, len(row['runner']))}}" for cell, row in zip(cells, timed, strict=True))
        )
    for row in entry["runners"]:
        method = f" ({row['method']})" if row.get("method") else ""
        why = f": {row['why']}" if row.get("why") else ""
        yield f"  {row['runner']:<18} {row['status']}{method}{_error(row)}{why}"


def _error(row: dict[str, Any]) -> str:
    """The largest error of its checked cases."""
    errors = [case["error"] for case in row.get("cases", ()) if not case["apart"]]
    return f", largest error {max(errors):.1e} in {len(row['cases'])} cases" if errors else ""
