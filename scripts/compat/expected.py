"""What must come of every row: `expected.json`, its reading, and the comparison with a run.

The file maps row -> architecture -> side -> {first release: outcome}; an outcome holds until the next one. SM120 and
SM121 share theirs. `patches` maps patch -> {first release: status} on SM12x.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scripts.compat.rows import SM12X
from scripts.compat.run import Cell
from sglang_sm120.upstream import releases

FILE = Path(__file__).with_name("expected.json")
GROUP = dict.fromkeys(SM12X, "sm12x")


def load() -> dict[str, Any]:
    """The file."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def outcome(table: dict[str, Any], row: str, arch: str, side: str, release: str) -> str | None:
    """What the file says; None if it says nothing."""
    changes = table["rows"].get(row, {}).get(GROUP.get(arch, arch), {}).get(side, {})
    return releases.spans(changes).get(release)


def problems(cells: Iterable[Cell], table: dict[str, Any]) -> list[str]:
    """How a run differs from what must come of it; empty if it does not."""
    found = []
    for cell in cells:
        where = f"SGLang {cell.release}, {cell.arch}, {cell.side}: {cell.row.id}"
        expected = outcome(table, cell.row.id, cell.arch, cell.side, cell.release)
        if cell.outcome != expected:
            found.append(
                f"{where}\n    expected {expected}\n    got      {cell.outcome}\n    errors   {cell.document['errors']}"
            )
        if cell.side == "ours":
            found += [f"{where}: {problem}" for problem in _patches(cell, table)]
    return found


def _patches(cell: Cell, table: dict[str, Any]) -> list[str]:
    states = {p["name"]: p["status"] for p in cell.document["patches"]}
    if cell.arch not in SM12X:
        return [f"{name} is {status}" for name, status in states.items() if status != "not applicable"]
    wanted = {name: releases.spans(changes).get(cell.release) for name, changes in table["patches"].items()}
    return [] if states == wanted else [f"patches are {states}; expected {wanted}"]


def record(cells: Iterable[Cell]) -> dict[str, Any]:
    """The table that a run would satisfy. For a person to read and correct before it is kept."""
    seen: dict[str, Any] = {"patches": {}, "rows": {}}
    order = {release: number for number, release in enumerate(releases.PROVEN)}
    for cell in sorted(cells, key=lambda c: order[c.release]):
        if cell.arch == "sm121":
            continue
        place = seen["rows"].setdefault(cell.row.id, {}).setdefault(GROUP.get(cell.arch, cell.arch), {})
        _append(place.setdefault(cell.side, {}), cell.release, cell.outcome)
        if cell.side == "ours" and cell.arch == "sm120":
            for patch in cell.document["patches"]:
                _append(seen["patches"].setdefault(patch["name"], {}), cell.release, patch["status"])
    return seen


def _append(changes: dict[str, str], release: str, value: str) -> None:
    if not changes or list(changes.values())[-1] != value:
        changes[release] = value
