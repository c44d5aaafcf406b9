#!/usr/bin/env python3
"""A MODEL of the MXFP4 MoE layer's time on SM120 and SM121 cards. Nothing here was measured on such a card.

Per shape and token count the largest of three bounds, plus fixed terms:
  DRAM    bytes of the experts hit (uniform independent routing), input and output, over the card's datasheet bandwidth
  issue   weights x thread-instructions per weight (scripts/sm120_report.py --json) over the card's issue slots
  MMA     operations, padded to the token tile, over the dense rate of the mode
  fixed   three launches and the pipeline's fill per product, the same 2.5 us each as a rough allowance
A bound says what a card cannot do better than; how near the kernel comes is for `sglang-sm120 selftest` to measure.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

# SMs, boost Hz, bytes/s, dense bf16 FLOP/s with float32 sums, dense MXFP8 FLOP/s: vendor figures, or derived from them
CARDS = {
    "RTX PRO 6000 (Workstation)": (188, 2.617e9, 1.792e12, 503.8e12, 1007.6e12),
    "RTX PRO 6000 (Server)": (188, 2.4e9, 1.597e12, 480e12, 960e12),
    "RTX 5090": (170, 2.407e9, 1.792e12, 209.5e12, 838e12),
    "GB10 (DGX Spark)": (48, 2.4e9, 0.273e12, 62.5e12, 250e12),
}
SHAPES = {"V4-Flash": (256, 4096, 2048, 6), "V4-Pro": (384, 7168, 3072, 6), "V4.1-Flash": (384, 5120, 2304, 6)}
FIXED_US = 2.5 * 3


def experts_hit(experts: int, routes: int) -> float:
    return experts * (1 - (1 - 1 / experts) ** routes)


def bound(card: str, shape: str, tp: int, tokens: int, mode: str, instructions: dict[int, float]) -> dict[str, float]:
    sms, clock, bandwidth, bf16, fp8 = CARDS[card]
    experts, hidden, inter, top_k = SHAPES[shape]
    inter //= tp
    routes = tokens * top_k
    hit = experts_hit(experts, routes)
    expected = routes / experts
    width = 8 if expected <= 8 else 16 if expected <= 16 and mode == "bf16" else 32 if expected <= 40 else 64
    groups = min(routes, hit + routes / width)
    moved = hit * 3 * hidden * inter * 17 / 32 + 4 * tokens * hidden
    weights = groups * 3 * hidden * inter
    per_weight = instructions.get(width, max(instructions.values()))
    return {
        "dram_us": moved / bandwidth * 1e6,
        "issue_us": weights * per_weight / (sms * 128 * clock) * 1e6,
        "mma_us": 2 * weights * width / (bf16 if mode == "bf16" else fp8) * 1e6,
    }


def instructions_of(rows: list[dict[str, Any]], mode: str) -> dict[int, float]:
    """Worst instructions per weight by token tile, from the report's rows for sm_120a."""
    found: dict[int, float] = {}
    for r in rows:
        if r["mode"] == mode and r["arch"] == "sm_120a":
            found[r["tokens"]] = max(found.get(r["tokens"], 0.0), r["instructions_per_weight"])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", help="output of sm120_report.py --json")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = json.loads(Path(options.report).read_text())["rows"]
    out = []
    for card in CARDS:
        for shape in SHAPES:
            for tp in (1, 2, 4):
                for tokens in (1, 2, 4, 8, 16, 64, 256, 1024, 4096):
                    for mode in ("bf16", "mxfp8"):
                        parts = bound(card, shape, tp, tokens, mode, instructions_of(rows, mode))
                        total = max(parts.values()) + FIXED_US
                        out.append(
                            {"card": card, "shape": shape, "tp": tp, "tokens": tokens, "mode": mode, "model_us": total}
                            | parts
                        )
    if options.json:
        print(json.dumps({"schema": 1, "kind": "model", "measured": False, "rows": out}, indent=1))
        return 0
    print("MODEL, not measured: microseconds a layer; the bound that decides is marked")
    print("| card | shape | TP | T | mode | model | DRAM | issue | MMA |\n|---|---|---|---|---|---|---|---|---|")
    for r in out:
        cells = [
            f"{r[k]:.1f}{' *' if r[k] == max(r['dram_us'], r['issue_us'], r['mma_us']) else ''}"
            for k in ("dram_us", "issue_us", "mma_us")
        ]
        print(
            f"| {r['card']} | {r['shape']} | {r['tp']} | {r['tokens']} | {r['mode']} | {r['model_us']:.1f} | "
            + " | ".join(cells)
            + " |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
