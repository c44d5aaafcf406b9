"""The kernel race without a GPU: its kernels are stood in for by float64 on the CPU."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

KERNELS = str(Path(__file__).resolve().parents[2] / "benchmarks/kernels")


@pytest.fixture
def bench_path():
    sys.path.insert(0, KERNELS)
    yield
    sys.path.remove(KERNELS)


@pytest.fixture
def workload(bench_path, monkeypatch):
    module = importlib.import_module("workload")
    monkeypatch.setattr(module, "DEVICE", "cpu")
    return module


@pytest.fixture
def bench(workload, monkeypatch):
    """bench_moe with layers of 8 experts on the CPU, wall-clock times and stand-ins for the kernels."""
    import torch
    from race_stand_ins import Late, Replayed, Standin, wall_clock

    module = importlib.import_module("bench_moe")
    contestants = importlib.import_module("contestants")
    monkeypatch.setattr(workload, "SHAPES", {"tiny": (8, 64, 32, 2), "other": (8, 64, 96, 2)})
    monkeypatch.setattr(workload, "calls_for", lambda tokens, top_k: 2)
    monkeypatch.setattr(module, "host_cost", lambda contestant, case: 1.0)
    monkeypatch.setattr(workload, "copy_bandwidth", lambda: 1e12)
    monkeypatch.setattr(workload, "matmul_rate", lambda: 1e14)
    monkeypatch.setattr(workload, "capture", lambda calls: Replayed(calls))
    monkeypatch.setattr(workload, "time_events", wall_clock)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    table = {
        "good": contestants.Contestant(Standin, ("torch", "no-such-package")),
        "wrong": contestants.Contestant(lambda w, s: Standin(w, s, factor=1.02)),
        "absent": contestants.Contestant(lambda w, s: importlib.import_module("no_such_kernel_library")),
        "small": contestants.Contestant(lambda w, s: Standin(w, s, limit=16)),
        "late": contestants.Contestant(Late),
    }
    monkeypatch.setattr(module, "CONTESTANTS", table)
    monkeypatch.setattr(contestants, "CONTESTANTS", table)
    return module
