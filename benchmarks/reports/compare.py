#!/usr/bin/env python3
"""Compare two receipts of bench_moe.py row by row.

compare.py before.json after.json [--contestant "ours bf16"]    a change: its factor, where both outputs were checked
compare.py first.json second.json --repeat                      the same commit twice: do the runs agree?

Two runs of a row agree when the ranges of their samples overlap, each without its lowest and highest tenth and widened
by 1 % of its median. The 1 % is for what differs between processes and not between samples of one: where buffers lie,
clocks, temperature.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.reports import receipts

LIMITS = {"ours mxfp8": 8e-2}  # as in bench_moe.py
DEFAULT_LIMIT = 1e-2
BETWEEN_RUNS = 0.01
Key = tuple[str, str, int]  # shape, routing, tokens


def checked(receipt: dict[str, Any], shape: str, contestant: str) -> bool:
    error = receipt["errors"].get(shape, {}).get(contestant)
    return error is not None and error <= LIMITS.get(contestant, DEFAULT_LIMIT)


def spread(row: dict[str, Any], contestant: str) -> float:
    """Half the range of the middle half of the samples, relative to the median."""
    times = sorted(row["raw"][contestant])
    quarter = len(times) // 4
    return (times[-1 - quarter] - times[quarter]) / 2 / row["us"][contestant]


def sample_range(row: dict[str, Any], contestant: str) -> tuple[float, float]:
    """Lowest and highest sample of a row without the outer tenths, widened by `BETWEEN_RUNS`."""
    times, width = sorted(row["raw"][contestant]), BETWEEN_RUNS * row["us"][contestant]
    tenth = round(len(times) / 10)
    return times[tenth] - width, times[-1 - tenth] + width


def agree(first: dict[str, Any], second: dict[str, Any], contestant: str) -> bool:
    """Whether two runs of one row agree, by the rule above."""
    (low, high), (other_low, other_high) = (sample_range(r, contestant) for r in (first, second))
    return low <= other_high and other_low <= high


def keyed(receipt: dict[str, Any]) -> dict[Key, dict[str, Any]]:
    return {(r["shape"], r["routing"], r["tokens"]): r for r in receipt["rows"]}


def compare(before: dict[str, Any], after: dict[str, Any], contestant: str) -> list[str]:
    old = keyed(before)
    lines = []
    for key, row in keyed(after).items():
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


def repeats(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[Key, str, float, float, bool]]:
    """(row, contestant, median, other median, agree) of all that both runs timed. Raises ValueError: other commits."""
    if first["commit"] != second["commit"]:
        raise ValueError(f"not the same commit: {first['commit'] or 'unknown'} and {second['commit'] or 'unknown'}")
    other = keyed(second)
    return [
        (key, name, row["us"][name], other[key]["us"][name], agree(row, other[key], name))
        for key, row in keyed(first).items()
        if key in other
        for name in row["us"]
        if name in other[key]["us"]
    ]


def repeat_lines(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    found = repeats(first, second)
    lines = [
        f"{k[0]:16s} {k[1]:12s} T={k[2]:5d} {name:26s} {a:9.1f} {b:9.1f} us  {'agree' if same else f'{b / a - 1:+.1%}'}"
        for k, name, a, b, same in found
    ]
    return [*lines, f"{sum(same for *_, same in found)} of {len(found)} agree"] if found else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--contestant", default="ours bf16")
    parser.add_argument("--repeat", action="store_true", help="two runs of one commit, all contestants")
    options = parser.parse_args()
    before, after = (receipts.receipt(p) for p in (options.before, options.after))
    if before["gpu"] != after["gpu"]:
        print(f"different GPUs: {before['gpu']} and {after['gpu']}", file=sys.stderr)
        return 1
    try:
        lines = repeat_lines(before, after) if options.repeat else compare(before, after, options.contestant)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(lines))
    return int(not lines)


if __name__ == "__main__":
    sys.exit(main())
