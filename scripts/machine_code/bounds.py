#!/usr/bin/env python3
"""What bounds each prefill tile on SM120, from the machine code of its main loop; no GPU.

    bounds.py                          the installed Triton
    bounds.py --triton all             the releases of report.py
    bounds.py --receipt FILE           as JSON; scripts/docs.py reads the one in benchmarks/receipts

Cycles of an SM's quarter for a pass of the loop of one warp: an issue slot for each instruction; MMA operations over
the card's dense rate (`speed_model.CARDS`); shared memory, which the four quarters share, 128 bytes a cycle without
conflicts or broadcasts, copies into it included. The largest bounds the tile. Nothing here is a time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.machine_code import report
from scripts.machine_code.compiled_tile import TOOLS, compile_tile, main_loop, opcode, run_tool, tiles, triton_tools
from sglang_sm120.commands.selftest import speed_model

TOKENS = 32  # of the narrowest prefill tile
CARDS = {"RTX PRO 6000": "RTX PRO 6000 (Workstation)", "RTX 5090": "RTX 5090", "GB10": "GB10 (DGX Spark)"}
_WIDTH = {"": 4, "64": 8, "128": 16}  # bytes a thread
_MMA = {"HMMA.16816": 4096, "QMMA.SF.16832": 8192, "QMMA.16832": 8192}  # operations


def shared_bytes(instruction: str) -> int:
    """Bytes that a warp's instruction moves in shared memory."""
    op = opcode(instruction)
    kind = op.split(".")[0]
    if kind == "LDSM":
        return 128 * int(op.rsplit(".", 1)[-1]) if op[-1].isdigit() else 128
    if kind not in ("LDS", "STS", "LDGSTS"):
        return 0
    width = re.search(r"\.(64|128)(?:\.|$)", op)
    return 32 * _WIDTH[width[1] if width else ""]


def operations(instruction: str) -> int:
    """Floating-point operations of a warp's MMA; 0 of anything else."""
    return next((n for name, n in _MMA.items() if opcode(instruction).startswith(name)), 0)


def measure(config: dict[str, Any], arch: int = 120) -> dict[str, Any]:
    """A tile's figures."""
    import triton

    tile = config["tile"]
    compiled = compile_tile(config, arch)
    _, loop = main_loop(run_tool("nvdisasm", ["-c"], compiled.asm["cubin"]))
    done = sum(map(operations, loop))
    per_pass = 2 * tile.rows * tile.tokens * 64 * tile.superblocks * tile.unroll / tile.warps
    if done != per_pass:
        raise SystemExit(f"{config['format']} {tile}: the loop has {done} operations a warp, expected {per_pass}")
    return {
        "triton": triton.__version__, "format": config["format"], "mode": config["mode"], "kernel": config["kernel"],
        "tile": f"{tile.rows}x{tile.tokens}", "wide": config["many"], "tokens": tile.tokens,
        "weights": tile.rows * 64 * tile.superblocks * tile.unroll // tile.warps, "instructions": len(loop),
        "shared_cycles": 4 * sum(map(shared_bytes, loop)) // 128, "operations": done,
        "mma_cycles": {name: round(done / rate(card, config["mode"]), 1) for name, card in CARDS.items()},
    }  # fmt: skip


def rate(card: str, mode: str) -> float:
    """Operations a cycle of a quarter of an SM."""
    c = speed_model.CARDS[card]
    return (c.bf16 if mode == "bf16" else c.mxfp8) / (4 * c.sms * c.hz)


def rows_of(version: str | None) -> list[dict[str, Any]]:
    """The rows for one Triton release (None: the installed one), from a process of its own."""
    import triton

    path = [str(report.ROOT / "overlay")]
    if version and version != triton.__version__:
        path.insert(0, str(report.fetched(version)))
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path)) | {TOOLS: triton_tools(triton)}
    done = subprocess.run([sys.executable, __file__, "--worker"], env=env, stdout=subprocess.PIPE, check=True)
    return list(json.loads(done.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton", nargs="+", metavar="VERSION", help="releases, or 'all' for report.py's")
    parser.add_argument("--receipt", type=Path, metavar="FILE")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        json.dump([measure(config) for config in tiles() if config["tile"].tokens >= TOKENS], sys.stdout)
        return 0
    versions = list(report.RELEASES) if options.triton == ["all"] else options.triton or [None]
    rows = [row for version in versions for row in rows_of(version)]
    if options.receipt:
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        options.receipt.write_text(f'{{\n "schema": 1,\n "kind": "prefill_bounds",\n "rows": [\n{lines}\n ]\n}}\n')
    for row in rows:
        print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
