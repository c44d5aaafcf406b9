"""Ctrl-C that ends a command also while it imports.

A KeyboardInterrupt is not safe inside an import: bare `except` clauses of torch's modules swallow it, pybind11's
initializers abort the process or report `initialization failed`, and numpy is left half made for the next to trip
over. Commands import before they have anything to put away, so there the process ends where it stands.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

_IMPORT = "<frozen importlib._bootstrap>"


@contextmanager
def end_imports(status: int) -> Iterator[None]:
    """Within, a SIGINT in the midst of an import exits with `status` at once; elsewhere it is a KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored under nohup, or somebody else's
        yield
        return
    signal.signal(signal.SIGINT, partial(_interrupt, status))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(status: int, _number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            os._exit(status)
        frame = frame.f_back
    raise KeyboardInterrupt
