"""Ctrl-C that ends a command although something on the way swallows the exception.

Importing torch and what it imports has bare `except` clauses; a KeyboardInterrupt that meets one of them is lost.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_seen = False


@contextmanager
def remembered() -> Iterator[None]:
    """Within, a SIGINT raises KeyboardInterrupt as ever, and `check` raises it once more. Elsewhere nothing changes."""
    global _seen
    _seen = False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored under nohup, or somebody else's
        yield
        return
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def check() -> None:
    """To be called where work goes on: raises KeyboardInterrupt if one was lost."""
    if _seen:
        raise KeyboardInterrupt


def _note(number: int, frame: FrameType | None) -> None:
    global _seen
    _seen = True
    raise KeyboardInterrupt
