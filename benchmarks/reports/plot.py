#!/usr/bin/env python3
"""Draw receipts of bench_moe.py as SVG: time against tokens with floor and contestants, and fraction of the floor.

plot.py receipt.json --out DIRECTORY     writes SHAPE-ROUTING.svg for each pair in the receipt; needs nothing
installed
"""

from __future__ import annotations

import argparse
import math
import sys
from html import escape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.reports import receipts

COLOURS = (
    "#0b6e4f", "#c84630", "#3d5a98", "#b8860b", "#6b4e71", "#4f6d7a", "#1ba3c6", "#d43790", "#7a9a01", "#a0522d",
)  # fmt: skip
WIDTH, HEIGHT, LEFT, TOP, PANEL, GAP = 900, 440, 60, 40, 370, 70
LEGEND_COLUMNS = 5


def polyline(points: list[tuple[float, float]], colour: str, dashed: bool = False) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'


def text(x: float, y: float, content: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(content)}</text>'


def figure(rows: list[dict[str, Any]], title: str, source: str) -> str:
    rows = sorted(rows, key=lambda r: r["tokens"])
    names = list(dict.fromkeys(n for r in rows for n in r["us"]))
    high = max(max(r["us"].values(), default=1) for r in rows)
    low = min(r["floor_us"] for r in rows)
    first, last = math.log2(rows[0]["tokens"]), math.log2(rows[-1]["tokens"]) or 1
    bottom = HEIGHT - 90

    def x_at(tokens: int, panel: int) -> float:
        return LEFT + panel * (PANEL + GAP) + PANEL * (math.log2(tokens) - first) / max(last - first, 1e-9)

    def y_time(us: float) -> float:
        return bottom - (bottom - TOP) * math.log(us / low) / math.log(high / low)

    def y_share(share: float) -> float:
        return bottom - (bottom - TOP) * share

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>', text(LEFT, 22, title, size=15),
    ]  # fmt: skip
    for decade in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for step in (1, 2, 5):
            if low <= step * 10**decade <= high:
                y = y_time(step * 10**decade)
                parts += [
                    f'<path d="M{LEFT} {y:.1f}h{PANEL}" stroke="#ddd"/>',
                    text(LEFT - 6, y + 4, f"{step * 10**decade:g}", "end"),
                ]
    for tenth in range(0, 11, 2):
        y = y_share(tenth / 10)
        parts += [
            f'<path d="M{LEFT + PANEL + GAP} {y:.1f}h{PANEL}" stroke="#ddd"/>',
            text(LEFT + PANEL + GAP - 6, y + 4, f"{tenth / 10:.1f}", "end"),
        ]
    for r in rows:
        parts += [text(x_at(r["tokens"], p), bottom + 18, str(r["tokens"]), "middle") for p in (0, 1)]
    parts.append(polyline([(x_at(r["tokens"], 0), y_time(r["floor_us"])) for r in rows], "#888", dashed=True))
    for name, colour in zip(names, COLOURS * 2, strict=False):
        having = [r for r in rows if name in r["us"]]
        parts.append(polyline([(x_at(r["tokens"], 0), y_time(r["us"][name])) for r in having], colour))
        parts.append(polyline([(x_at(r["tokens"], 1), y_share(r["floor_us"] / r["us"][name])) for r in having], colour))
    for i, (name, colour) in enumerate([*zip(names, COLOURS * 2, strict=False), ("floor", "#888")]):
        x, y = LEFT + i % LEGEND_COLUMNS * 167, HEIGHT - 62 + i // LEGEND_COLUMNS * 18
        parts += [
            f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>',
            text(x + 16, y + 10, name, size=11),
        ]
    parts += [
        text(LEFT, TOP - 4, "µs a layer (log)"),
        text(LEFT + PANEL + GAP, TOP - 4, "floor ÷ time"),
        text(LEFT, HEIGHT - 6, source, size=10),
    ]
    return "\n".join([*parts, "</svg>"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("receipt", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    receipt = receipts.receipt(options.receipt)
    options.out.mkdir(parents=True, exist_ok=True)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in receipt["rows"]:
        groups.setdefault((row["shape"], row["routing"]), []).append(row)
    source = f"{options.receipt.name}: {receipt['gpu']}, Triton {receipt['triton']}, commit {receipt['commit'][:10]}"
    for (shape, routing), rows in groups.items():
        target = options.out / f"{shape}-{routing}.svg"
        target.write_text(figure(rows, f"{shape}, {routing} routing", source))
        print(target)
    return int(not groups)


if __name__ == "__main__":
    sys.exit(main())
