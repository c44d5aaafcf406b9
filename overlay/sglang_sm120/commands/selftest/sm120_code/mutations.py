"""Faults put into a substituted kernel on purpose, to see that the checks are red with them."""

from __future__ import annotations

import re
from collections.abc import Callable

# What to break -> (pattern in the substituted text, what stands there then).
BREAKS: dict[str, tuple[str, str | Callable[[re.Match[str]], str]]] = {
    # Shared memory is read before cp.async has delivered.
    "wait": (r"cp\.async\.wait_(?:group\s+\d+|all);", ""),
    # The scales of rows g and g + 8 change places.
    "lane": (r"or\.b32 %on_from, %on_quad, ([0-3]);", lambda m: f"or.b32 %on_from, %on_quad, {int(m[1]) ^ 1};"),
    # Both halves of a packed result change places.
    "half": (r"\{%on_half_d0, %on_half_d1\};", "{%on_half_d1, %on_half_d0};"),
}


def broken(text: str, what: str) -> tuple[str, int]:
    """A substituted kernel with the fault of that name, and at how many places.

    Raises:
        ValueError: no such fault.
    """
    if what not in BREAKS:
        raise ValueError(f"--break is {what!r}, expected one of {', '.join(BREAKS)}")
    return re.subn(*BREAKS[what], text)
