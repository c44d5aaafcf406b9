#!/usr/bin/env python3
"""Print a MODEL of the MXFP4 MoE layer's time on SM120 and SM121 cards. Nothing here was measured on such a card.

The model is `sglang_sm120.commands.selftest.speed_model`, which `sglang-sm120 selftest` prints beside what it
measures. Here it is laid out over the published shapes, with the instructions per weight of a report of the machine
code:

    scripts/machine_code/report.py --json > report.json
    PYTHONPATH=overlay python3 benchmarks/kernels/model_sm120.py report.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sglang_sm120 import schemas
from sglang_sm120.commands.selftest import speed_model

SHAPES = {"V4-Flash": (256, 4096, 2048, 6), "V4-Pro": (384, 7168, 3072, 6), "V4.1-Flash": (384, 5120, 2304, 6)}
TOKENS = (1, 2, 4, 8, 16, 64, 256, 1024, 4096)
REPORT_SCHEMA = 1
BOUNDS = ("dram_us", "issue_us", "mma_us")


def instructions_of(rows: list[dict[str, Any]], mode: str) -> dict[int, float]:
    """Worst instructions per weight by token tile, from the report's rows for sm_120a."""
    found: dict[int, float] = {}
    for r in rows:
        if r["mode"] == mode and r["arch"] == "sm_120a":
            found[r["tokens"]] = max(found.get(r["tokens"], 0.0), r["instructions_per_weight"])
    return found


def rows_of(report: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The model over cards, shapes, tensor parallelism, token counts and modes."""
    out = []
    for card in speed_model.CARDS:
        for shape, (experts, hidden, inter, top_k) in SHAPES.items():
            for tp in (1, 2, 4):
                for tokens in TOKENS:
                    for mode in ("bf16", "mxfp8"):
                        layer = (experts, hidden, inter // tp, top_k)
                        instructions = instructions_of(report, mode) if report else None
                        parts = speed_model.times(card, layer, tokens, mode, instructions=instructions)
                        row = {"card": card, "shape": shape, "tp": tp, "tokens": tokens, "mode": mode}
                        out.append(row | parts.document())
    return out


def read_report(path: Path) -> list[dict[str, Any]]:
    """The rows of `report.py --json`. SystemExit says what the file is instead."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SystemExit(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SystemExit(f"{path} is no JSON: {error}") from error
    try:
        rows = schemas.check(document, "an output of report.py --json", REPORT_SCHEMA).get("rows")
    except schemas.SchemaError as error:
        raise SystemExit(f"{path}: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise SystemExit(f"{path}: an output of report.py without rows")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", nargs="?", type=Path, help="output of report.py --json; default: the worst known")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    out = rows_of(read_report(options.report) if options.report else None)
    if options.json:
        print(json.dumps({"schema": 1, "kind": "model", "measured": False, "rows": out}, indent=1))
        return 0
    print(f"{speed_model.LABEL.upper()}: microseconds a layer; the bound that decides is marked")
    print("| card | shape | TP | T | mode | model | DRAM | issue | MMA |\n|---|---|---|---|---|---|---|---|---|")
    for r in out:
        most = max(r[k] for k in BOUNDS)
        cells = [f"{r[k]:.1f}{' *' if r[k] == most else ''}" for k in BOUNDS]
        print(
            f"| {r['card']} | {r['shape']} | {r['tp']} | {r['tokens']} | {r['mode']} | {r['model_us']:.1f} | "
            + " | ".join(cells)
            + " |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
