"""Tables of `tune`: the one of tiles, written for `kernels.sm120.tile_tables`, and the last lines about any."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_sm120 import __version__, files
from sglang_sm120.kernels.sm120.tile_tables import SCHEMA, Table


def write(path: Path, table: Table) -> None:
    """Replace the file at once, so that an interruption leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = table.machine
    head = {"schema": SCHEMA, "overlay": __version__, "gpu": machine.gpu, "sms": machine.sms, "triton": machine.triton}
    rows = {"entries": list(table.entries), "kept": list(table.kept)}
    files.write_whole(path, json.dumps(head | rows, indent=1) + "\n")


def closing(document: Mapping[str, Any]) -> list[str]:
    """The last lines about a table, of tiles or of runners: what is missing or wrong, and what to do."""
    lines = [f"missing nothing was measured for {layer}" for layer in document.get("missing", [])]
    if document.get("problem"):
        lines.append(f"note    {document['problem']}")
    lines += [f"ERROR   {error}" for error in document["errors"]]
    if document.get("complete") is False:
        lines.append("The time is spent; the same command goes on from here.")
    return lines
