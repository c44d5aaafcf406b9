"""What Triton makes of the kernel's tiles for SM120 and SM121, from the receipt of `scripts/machine_code/report.py`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scripts.pages.markdown import markdown_table

RECEIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "receipts" / "sm120-machine-code.json"
Row = dict[str, Any]
MOST = ("instructions_per_weight", "registers", "spills", "shared", "sync_loads")  # a greater figure is worse


def rows() -> list[Row]:
    """Every compiled tile."""
    return list(json.loads(RECEIPT.read_text(encoding="utf-8"))["rows"])


def name(row: Row) -> str:
    """Mode and tile, as the tables name them."""
    return f"{row['mode']} {row['tile']}{' wide' if row['wide'] else ''}"


def products(row: Row) -> str:
    """The MMA instructions of a pass of the loop."""
    return ", ".join(
        f"{n} {op}" + (".SF" if op == "QMMA" and row["scaled_mma"] else "") for op, n in row["mma"].items()
    )


def grouped(compiled: list[Row], by: Iterable[str]) -> list[list[Row]]:
    """Rows that agree in the named figures, in order of appearance."""
    keys = list(by)
    groups: dict[str, list[Row]] = {}
    for row in compiled:
        groups.setdefault(json.dumps([row[key] for key in keys]), []).append(row)
    return list(groups.values())


def worst() -> str:
    """The worst figure of each tile, over releases of Triton, targets and both products."""
    found = []
    for group in grouped(rows(), ("mode", "tile", "wide", "warps")):
        most = [max(row[what] for row in group) for what in MOST]
        copies = "yes" if all(row["weight_copies_16b"] for row in group) else "NO"
        ctas = min(row["ctas_per_sm"] for row in group)
        found.append((name(group[0]), group[0]["warps"], *most, ctas, copies))
    head = ("tile", "warps", "instr./weight", "registers", "spills", "shared, bytes", "sync loads", "CTAs/SM")
    return markdown_table((*head, "16 B copies"), found)


def sources() -> str:
    """The releases and targets that were compiled."""
    versions, targets = (", ".join(dict.fromkeys(row[what] for row in rows())) for what in ("triton", "arch"))
    return f"Triton {versions}; {targets}"


def everything() -> str:
    """Every tile of the receipt."""
    return table(rows())


def table(compiled: list[Row]) -> str:
    """Compiled tiles; targets with the same figures share a row."""
    figures = [key for key in compiled[0] if key not in ("arch", "broken")] if compiled else []
    found = [
        (
            group[0]["triton"],
            ", ".join(row["arch"] for row in group),
            group[0]["kernel"],
            name(group[0]),
            group[0]["warps"],
            products(group[0]),
            *(group[0][what] for what in MOST),
            group[0]["ctas_per_sm"],
            "yes" if group[0]["weight_copies_16b"] else "NO",
        )
        for group in grouped(compiled, figures)
    ]
    head = ("Triton", "target", "product", "tile", "warps", "MMA in SASS", "instr./weight", "registers", "spills")
    return markdown_table((*head, "shared", "sync loads", "CTAs/SM", "16 B copies"), found)
