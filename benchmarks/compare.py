#!/usr/bin/env python3
"""Compare two receipts of bench_moe.py row by row. A speed-up needs both runs to have checked the output.

compare.py before.json after.json [--contestant "ours bf16"]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

LIMITS = {"ours mxfp8": 8e-2}  # as in bench_moe.py
DEFAULT_LIMIT = 1e-2


def checked(receipt: dict[str, Any], shape: str, contestant: str) -> bool:
    error = receipt["errors"].get(shape, {}).get(contestant)
    return error is not None and error <= LIMITS.get(contestant, DEFAULT_LIMIT)


def spread(row: dict[str, Any], contestant: str) -> float:
    """Half the range of the middle half of the samples, relative to the median."""
    times = sorted(row["raw"][contestant])
    quarter = len(times) // 4
    return (times[-1 - quarter] - times[quarter]) / 2 / row["us"][contestant]


def compare(before: dict[str, Any], after: dict[str, Any], contestant: str) -> list[str]:
    old = {(r["shape"], r["routing"], r["tokens"]): r for r in before["rows"]}
    lines = []
    for row in after["rows"]:
        key = (row["shape"], row["routing"], row["tokens"])
        if key not in old or contestant not in row["us"] or contestant not in old[key]["us"]:
            continue
        a, b = old[key]["us"][contestant], row["us"][contestant]
        noise = spread(old[key], contestant) + spread(row, contestant)
        good = checked(before, key[0], contestant) and checked(after, key[0], contestant)
        ratio = (
            f"{a / b:5.2f}x" + (" (within the spread)" if abs(a / b - 1) <= noise else "")
            if good
            else "not compared: unchecked output"
        )
        lines.append(f"{key[0]:16s} {key[1]:12s} T={key[2]:5d} {a:9.1f} -> {b:9.1f} us  {ratio}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--contestant", default="ours bf16")
    options = parser.parse_args()
    before, after = (json.loads(p.read_text()) for p in (options.before, options.after))
    if before["gpu"] != after["gpu"]:
        print(f"different GPUs: {before['gpu']} and {after['gpu']}", file=sys.stderr)
        return 1
    lines = compare(before, after, options.contestant)
    print("\n".join(lines))
    return int(not lines)


if __name__ == "__main__":
    sys.exit(main())
