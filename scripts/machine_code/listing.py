"""Compiled tiles as people read them: names, groups, a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from scripts.markdown import markdown_table

Row = dict[str, Any]
MOST = ("instructions_per_weight", "registers", "spills", "shared", "sync_loads")  # a greater figure is worse


def name(row: Row) -> str:
    """Weights, activations and tile, as the tables name them."""
    wide = " wide, with a rest" if row.get("rest") else " wide" if row["wide"] else ""
    return f"{weights(row)} {row['mode']} {row['tile']}{wide}"


def weights(row: Row) -> str:
    """The format of the weights; receipts of before there were two do not name theirs."""
    return str(row.get("format", "mxfp4"))


def products(row: Row) -> str:
    """The MMA instructions of a pass of the loop."""
    scaled = ".SF" if row["scaled_mma"] else ""
    return ", ".join(f"{n} {op}{scaled if op == 'QMMA' else ''}" for op, n in row["mma"].items())


def grouped(compiled: list[Row], by: Iterable[str]) -> list[list[Row]]:
    """Rows that agree in the named figures, in order of appearance."""
    keys = list(by)
    groups: dict[str, list[Row]] = {}
    for row in compiled:
        groups.setdefault(json.dumps([row.get(key) for key in keys]), []).append(row)
    return list(groups.values())


def table(compiled: list[Row]) -> str:
    """Every tile; targets with the same figures share a row, and a figure that all rows share stands below."""
    figures = [key for key in compiled[0] if key not in ("arch", "broken")] if compiled else []
    cells = []
    for group in grouped(compiled, figures):
        row = group[0]
        targets = ", ".join(one["arch"] for one in group)
        copies = "yes" if row["weight_copies_16b"] else "NO"
        about = (row["triton"], targets, row["kernel"], name(row), row["warps"], products(row))
        cells.append((*about, *(row[what] for what in MOST), row["ctas_per_sm"], copies))
    head = ("Triton", "target", "product", "tile", "warps", "MMA in SASS", "instr./weight", "registers", "spills")
    head += ("shared", "sync loads", "CTAs/SM", "16 B copies")
    return without_constants(head, cells)


def without_constants(head: Sequence[str], cells: Sequence[Sequence[Any]]) -> str:
    """A table of the columns that differ, and a sentence with the others."""
    differ = [n for n in range(len(head)) if len(cells) < 2 or len({cell[n] for cell in cells}) > 1]
    lines = markdown_table([head[n] for n in differ], [[cell[n] for n in differ] for cell in cells])
    same = ", ".join(f"{head[n]} {cells[0][n]}" for n in range(len(head)) if n not in differ)
    return f"{lines}\n\nIn all rows: {same}." if same else lines


def receipt(compiled: list[Row]) -> str:
    """The tiles as JSON, a line each, so that a change of one tile is a change of one line."""
    lines = ",\n".join(f"  {json.dumps(row)}" for row in compiled)
    return f'{{\n "schema": 1,\n "kind": "machine_code",\n "rows": [\n{lines}\n ]\n}}\n'
