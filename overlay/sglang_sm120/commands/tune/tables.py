"""Writing the table of tiles that `tune` measured, and that `kernels.sm120.tile_tables` reads."""

from __future__ import annotations

import json
from pathlib import Path

from sglang_sm120 import __version__, files
from sglang_sm120.kernels.sm120.tile_tables import SCHEMA, Table


def write(path: Path, table: Table) -> None:
    """Replace the file at once, so that an interruption leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = table.machine
    head = {"schema": SCHEMA, "overlay": __version__, "gpu": machine.gpu, "sms": machine.sms, "triton": machine.triton}
    rows = {"entries": list(table.entries), "kept": list(table.kept)}
    files.write_whole(path, json.dumps(head | rows, indent=1) + "\n")
