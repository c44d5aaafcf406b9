"""What Triton makes of the kernel's tiles for SM120 and SM121, from the receipt of `scripts/machine_code/report.py`."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.machine_code.listing import MOST, Row, grouped, name, table, without_constants

RECEIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "receipts" / "sm120-machine-code.json"


def compiled() -> list[Row]:
    """Every compiled tile."""
    return list(json.loads(RECEIPT.read_text(encoding="utf-8"))["rows"])


def worst() -> str:
    """The worst figure of each tile, over releases of Triton, targets and both products."""
    found = []
    for group in grouped(compiled(), ("format", "mode", "tile", "wide", "rest", "warps")):
        most = [max(row[what] for row in group) for what in MOST]
        copies = "yes" if all(row["weight_copies_16b"] for row in group) else "NO"
        ctas = min(row["ctas_per_sm"] for row in group)
        found.append((name(group[0]), group[0]["warps"], *most, ctas, copies))
    head = ("tile", "warps", "instr./weight", "registers", "spills", "shared, bytes", "sync loads", "CTAs/SM")
    return without_constants((*head, "16 B copies"), found)


def sources() -> str:
    """The releases and targets that were compiled."""
    versions, targets = (", ".join(dict.fromkeys(row[what] for row in compiled())) for what in ("triton", "arch"))
    return f"Triton {versions}; {targets}"


def everything() -> str:
    """Every tile of the receipt."""
    return table(compiled())
