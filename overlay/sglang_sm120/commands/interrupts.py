"""Ctrl-C that ends a command, whatever becomes of the exception on its way.

A KeyboardInterrupt is not safe inside an import: pybind11's initializers abort the process or report `initialization
failed`, and numpy is left half made for the next to trip over. Commands import before they have anything to put away,
so there the process ends where it stands. Elsewhere the exception can be lost: bare `except` clauses swallow it, and
numpy reports it as a TypeError when it comes while a shape is converted. So the signal is remembered.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

_IMPORT = "<frozen importlib._bootstrap>"
_seen = False


@contextmanager
def remembered(status: int) -> Iterator[None]:
    """Within, a SIGINT in the midst of an import exits with `status` at once; elsewhere it is a KeyboardInterrupt.

    Changes nothing outside the main thread, which alone gets signals and may say what becomes of them.
    """
    global _seen
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _seen = False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored under nohup, or somebody else's
        yield
        return
    signal.signal(signal.SIGINT, partial(_interrupt, status))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def restored() -> Iterator[None]:
    """An exception that leaves here after a SIGINT is a KeyboardInterrupt: it is what that became on its way."""
    try:
        yield
    except Exception:
        check()
        raise


def check() -> None:
    """To be called where work goes on: raises KeyboardInterrupt if one was lost."""
    if _seen:
        raise KeyboardInterrupt


def _interrupt(status: int, _number: int, frame: FrameType | None) -> None:
    global _seen
    _seen = True
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            os._exit(status)
        frame = frame.f_back
    raise KeyboardInterrupt
