"""What bounds each prefill tile on SM120, from the receipt of `scripts/machine_code/bounds.py`."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.machine_code.listing import Row, grouped, name
from scripts.markdown import markdown_table

RECEIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "receipts" / "sm120-prefill-bounds.json"


def prefill() -> str:
    """The most cycles of each tile, over releases of Triton and both products, and which of them decide."""
    rows: list[Row] = json.loads(RECEIPT.read_text(encoding="utf-8"))["rows"]
    cells = []
    for group in grouped(rows, ("format", "mode", "tile", "wide")):
        issue, shared = (max(row[what] for row in group) for what in ("instructions", "shared_cycles"))
        cycles = group[0]["mma_cycles"]
        cells.append((name(group[0]), issue, shared, *(_card(mma, issue, shared) for mma in cycles.values())))
    return markdown_table(("tile", "issue", "shared memory", *rows[0]["mma_cycles"]), cells)


def _card(mma: float, issue: float, shared: float) -> str:
    """MMA's cycles on a card, what decides, and by how much over the next."""
    bounds = {"MMA": mma, "issue": issue, "shared memory": shared}
    first, second = sorted(bounds, key=lambda what: -bounds[what])[:2]
    return f"MMA {mma:.0f}: {first}, {bounds[first] / bounds[second]:.2f}x {second}"
