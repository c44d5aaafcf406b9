"""Ports of a run's servers."""

from __future__ import annotations

import socket
from pathlib import Path

APART = 300  # with data-parallel attention SGLang takes ports up to 246 above each; else only free ones beside it


def port(first: int, number: int) -> int:
    """Of the server with this number."""
    return first + APART * number


def check(first: int, count: int) -> None:
    """See to it that the servers will find their ports.

    Raises:
        ValueError: one is taken, or one of those that the system gives to whoever asks for any.
    """
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    last = first + APART * count - 1
    if first < 1024 or last > 65535 or (first <= high and last >= low):
        raise ValueError(
            f"--port is {first}, so {count} servers use ports to {last}; expected ports of 1024 to 65535 beside "
            f"{low} to {high}, which the system gives to others"
        )
    for wanted in (port(first, number) for number in range(count)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError as error:
                raise ValueError(f"--port is {first}, and port {wanted} is taken ({error}); choose another") from error
