"""For all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Commands started by tests can be interrupted, also where the tests themselves run in the background.

    A shell without job control starts what it does not wait for with SIGINT ignored, and processes inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
