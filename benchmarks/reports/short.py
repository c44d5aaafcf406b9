"""A race in a few lines: one a shape and routing, with times the fastest peer at each token count."""

from __future__ import annotations

from typing import Any

OURS = "ours bf16"


def table(receipt: dict[str, Any]) -> str:
    """`1.93x marlin` is how much longer the row's fastest peer takes; `alone` a row in which no peer ran."""
    lines: dict[tuple[str, str], list[str]] = {}
    for row in receipt["rows"]:
        peers = {name: us for name, us in row["us"].items() if not name.startswith("ours")}
        cell = "ours failed"
        if OURS in row["us"]:
            best = min(peers, key=lambda name: peers[name], default=None)
            cell = "alone" if best is None else f"{peers[best] / row['us'][OURS]:.2f}x {best.split()[0]}"
        lines.setdefault((row["shape"], row["routing"]), []).append(f"{row['tokens']}: {cell}")
    text = [f"{shape:15s} {routing:11s} {'  '.join(cells)}" for (shape, routing), cells in lines.items()]
    return "\n".join([*text, f"{len(receipt['rows'])} rows, {len(receipt['not_run'])} not run"])
