"""The rows of a race: which shapes, routings and token counts, and in which order."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import workload

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 8192)
V4_FLASH = ("v4-flash-tp1", "v4-flash-tp2", "v4-flash-tp4", "v4-flash-tp8")
Row = tuple[str, str, int]  # shape, routing, tokens


def rows_of(shapes: Sequence[str], routings: Sequence[str], tokens: Sequence[int]) -> list[Row]:
    return [(s, r, t) for s in shapes for r in routings for t in tokens]


# Every shape, those first that tell most when the time ends early.
IN_TURN = (
    "v4.1-flash-tp8", "v4-flash-tp1", "v4.1-dspark-tp8", "v4-pro-tp1", "v4.1-flash-tp4", "reap-160-tp1", "v4-flash-tp8",
    "v4.1-dspark-tp1", "v4-pro-tp8", "v4-flash-tp2", "v4.1-flash-tp1", "v4-flash-tp4", "v4-pro-tp4", "v4.1-dspark-tp4",
    "v4-pro-tp2", "v4.1-flash-tp2", "reap-144-tp1", "reap-180-tp1", "v4.1-dspark-tp2",
)  # fmt: skip
FIRST = (1, 4, 16, 64, 256, 1024, 4096)
PROFILES = {
    "table": [
        row
        for shape in V4_FLASH
        for row in (
            *rows_of([shape], ["uniform"], list(TOKENS)),
            *rows_of([shape], ["speculative", "skewed"], [t for t in TOKENS if t <= 256]),
        )
    ],
    "first": rows_of(IN_TURN, ["uniform"], FIRST),
    # No kernel that `first` has not compiled: the routing decides no tile.
    "routings": [
        row
        for shape in IN_TURN
        for row in (*rows_of([shape], ["speculative"], FIRST[1:5]), *rows_of([shape], ["skewed"], FIRST[2:5]))
    ],
    "rest": rows_of(IN_TURN, ["uniform"], [t for t in TOKENS if t not in FIRST]),
}


def rows_asked(options: argparse.Namespace) -> list[list[Row]]:
    """The sets of rows in their order, of each the rows shape by shape.

    Raises SystemExit for a set or shape that there is not, or a shape that the sets have no row of.
    """
    sets = options.rows.split(",") if options.rows else []
    for name in sets:
        if name not in PROFILES:
            raise SystemExit(f"--rows names {name!r}, expected some of {', '.join(PROFILES)}")
    shapes = None if options.shapes in (None, "all") else options.shapes.split(",")
    known = dict.fromkeys(row[0] for name in sets for row in PROFILES[name]) if sets else workload.SHAPES
    for shape in shapes or ():
        if shape not in known:
            raise SystemExit(f"--shapes names {shape!r}, expected some of {', '.join(known)}")
    if not sets:
        chosen = shapes or (list(workload.SHAPES) if options.shapes else list(V4_FLASH[:3]))
        return [rows_of(chosen, options.routings.split(","), [int(t) for t in options.tokens.split(",")])]
    return [
        [
            row
            for shape in dict.fromkeys(r[0] for r in PROFILES[name])
            if shapes is None or shape in shapes
            for row in PROFILES[name]
            if row[0] == shape
        ]
        for name in sets
    ]
