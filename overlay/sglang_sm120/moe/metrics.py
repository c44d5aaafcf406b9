"""Prometheus metrics on SGLang's own endpoint: what the overlay is and what it dispatched.

SGLang's schedulers are processes of their own whose samples reach `/metrics` through files in PROMETHEUS_MULTIPROC_DIR,
a variable that SGLang sets when `--enable-metrics` is given. `prometheus_client` reads it at import, so it is imported
here at the first use and never without that variable.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from typing import Any

from sglang_sm120 import __version__, gpu
from sglang_sm120.patching import records

INFO, DISPATCHES = "sglang_sm120_info", "sglang_sm120_dispatch"


def count_dispatch(role: str, kernel: str) -> None:
    """Count one Python dispatch of a layer.

    A CUDA graph replays kernels without Python, so a captured layer counts when it is captured and not when it runs:
    zero means that the kernel never ran, a number is no measure of load.
    """
    if _is_exported():
        _child(role, kernel).inc()


@cache
def _is_exported() -> bool:
    """Looked up once, at the first forward: SGLang sets the variable before it starts a scheduler."""
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ


@cache
def _child(role: str, kernel: str) -> Any:
    _announce(role, kernel)
    return _counter().labels(role=role, kernel=kernel)


@lru_cache(maxsize=1)
def _counter() -> Any:
    from prometheus_client import Counter

    return Counter(
        DISPATCHES, "MoE layers dispatched by the overlay's method (captures count once)", ("role", "kernel")
    )


@lru_cache(maxsize=1)
def _gauge() -> Any:
    from prometheus_client import Gauge

    labels = ("version", "role", "kernel", "patches", "gpu")
    return Gauge(
        INFO, "The overlay, the kernel of each layer kind, and the applied patches", labels, multiprocess_mode="all"
    )


def _announce(role: str, kernel: str) -> None:
    applied = ",".join(s.name for s in records.STATES.values() if s.status == records.Status.APPLIED)
    card = gpu.detect()
    name = card.name if card else ""
    _gauge().labels(version=__version__, role=role, kernel=kernel, patches=applied, gpu=name).set(1)
