"""docs/COMPAT.md: what each launch gets, per release, from the matrix's expectations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.compat.rows import ROWS, Row
from scripts.markdown import markdown_table
from sglang_sm120.patches import PATCHES
from sglang_sm120.upstream import releases

EXPECTED = Path(__file__).resolve().parents[1] / "compat" / "expected.json"  # the matrix fails where a run differs
SECTIONS = {  # kind of checkpoint -> title
    "hybrid-nvfp4": "Hybrid FP8+NVFP4 checkpoints on SM120 and SM121",
    "mxfp4": "MXFP4 checkpoints on SM120 and SM121",
    "fp8": "FP8 checkpoints on SM120 and SM121",
}
Table = dict[str, Any]


def table() -> Table:
    """What the matrix expects, and finds."""
    return dict(json.loads(EXPECTED.read_text(encoding="utf-8")))


def patch_states() -> str:
    """What becomes of each patch, release by release."""
    states = table()["patches"]
    rows = []
    for patch in PATCHES:
        runs = releases.runs(releases.spans(states[patch.name]))
        rows.append((f"`{patch.name}`", "; ".join(f"{status} in {span}" for span, status in runs)))
    return markdown_table(("patch", "on SM120 and SM121"), rows)


def launches() -> str:
    """Every launch on SM120 and SM121, stock and with the overlay."""
    found = table()
    return "\n\n".join(f"## {title}\n\n{_launches(found, kind)}" for kind, title in SECTIONS.items())


def elsewhere() -> str:
    """That launches on other architectures get what stock gives.

    Raises:
        ValueError: one does not.
    """
    found = table()["rows"]
    asked = [row for row in ROWS if {"sm100", "sm90"} & set(row.archs)]
    differing = [
        (row.id, arch)
        for row in asked
        for arch in ("sm100", "sm90")
        if (known := found.get(row.id, {}).get(arch)) and known["stock"] != known["ours"]
    ]
    if differing:
        raise ValueError(f"the overlay changes launches where it must not act: {differing}")
    return f"{len(asked)} launches were asked on each, in every release: with the overlay all have stock's outcome."


def _cell(outcome: str) -> str:
    verdict, _, rest = outcome.partition(": ")
    return f"**{verdict}** {rest}"


def _launches(found: Table, kind: str) -> str:
    rows = []
    for row in ROWS:
        known = found["rows"].get(row.id, {}).get("sm12x")
        if row.kind != kind or known is None:
            continue
        stock, ours = (releases.spans(known[side]) for side in ("stock", "ours"))
        both = {r: (stock[r], ours[r]) for r in row.in_releases}
        for number, (span, (before, after)) in enumerate(releases.runs(both)):
            name = _launch(row) if number == 0 else ""
            rows.append((name, span, _cell(before), "the same" if before == after else _cell(after)))
    return markdown_table(("launch", "SGLang", "stock", "with the overlay"), rows)


def _launch(row: Row) -> str:
    words = row.id.split(", ")[1:] or ["no draft, no runner asked for"]
    return ", ".join(f"`{w}`" if "=" in w or w.startswith("--") else w for w in words)
