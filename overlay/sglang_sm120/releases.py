"""The SGLang releases that the overlay was proven on, and the installed one.

The one file that knows release numbers by value. Everything else asks about features or fingerprints.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

PROVEN = ("0.5.23",)


def installed() -> str | None:
    """Version of the installed SGLang distribution; None without one."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def base(release: str) -> str:
    """The public release that a version is built on: `0.5.23` for `0.5.23+cu130`; a development build stays itself."""
    return re.sub(r"\+.*$", "", release)


def is_proven(release: str) -> bool:
    """Whether the overlay was run on this release."""
    return base(release) in PROVEN


def describe() -> str:
    """`0.5.23`, or `0.5.21 to 0.5.23`."""
    return PROVEN[0] if len(PROVEN) == 1 else f"{PROVEN[0]} to {PROVEN[-1]}"
