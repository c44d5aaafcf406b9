"""The SGLang releases that the overlay was proven on, and the installed one.

The one file that knows release numbers by value. Patch records hold tables keyed by release, written with `spans`;
everything else asks about features or fingerprints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

T = TypeVar("T")

PROVEN = (
    "0.5.14",
    "0.5.15",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)


def installed(distribution: str = "sglang") -> str | None:
    """Version of an installed distribution, SGLang's if none is named; None without it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def base(release: str) -> str:
    """The public release that a version is built on: `0.5.23` for `0.5.23+cu130`; a development build stays itself."""
    return re.sub(r"\+.*$", "", release)


def is_proven(release: str) -> bool:
    """Whether the overlay was run on this release."""
    return base(release) in PROVEN


def describe() -> str:
    """`0.5.14 to 0.5.23`."""
    return PROVEN[0] if len(PROVEN) == 1 else f"{PROVEN[0]} to {PROVEN[-1]}"


def span(first: str, last: str = PROVEN[-1]) -> tuple[str, ...]:
    """The proven releases from one to another, both included."""
    return PROVEN[PROVEN.index(first) : PROVEN.index(last) + 1]


def spans(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Release -> value, from the releases at which the value changed.

    A value holds from its release on; None ends it. `spans({"0.5.15": "a", "0.5.18": "b", "0.5.21": None})` gives `a`
    to the proven releases from 0.5.15 to 0.5.17, `b` to 0.5.18 up to 0.5.20, and nothing to the others.
    """
    unknown = set(changes) - set(PROVEN)
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: not among the proven releases ({describe()})")
    table: dict[str, str] = {}
    current: str | None = None
    for release in PROVEN:
        current = changes.get(release, current)
        if current is not None:
            table[release] = current
    return table


def runs(values: Mapping[str, T]) -> list[tuple[str, T]]:
    """The inverse of `spans`, for people: [("0.5.15 to 0.5.17", "a"), ("0.5.18 to 0.5.20", "b")]."""
    out: list[tuple[list[str], T]] = []
    for release in PROVEN:
        if release not in values:
            continue
        if out and out[-1][1] == values[release] and PROVEN.index(out[-1][0][-1]) == PROVEN.index(release) - 1:
            out[-1][0].append(release)
        else:
            out.append(([release], values[release]))
    return [(members[0] if len(members) == 1 else f"{members[0]} to {members[-1]}", value) for members, value in out]
