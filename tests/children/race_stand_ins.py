"""Stand-ins for the kernels of the race, graphs and clocks, and a run of it."""

from __future__ import annotations

import importlib
import json
import sys
import time

import torch


class Replayed:
    def __init__(self, calls):
        self.calls = calls

    def replay(self):
        for call in self.calls:
            call()


def wall_clock(run, repeats, warm=3):
    times = []
    for _ in range(repeats + warm):
        begun = time.perf_counter()
        run()
        times.append((time.perf_counter() - begun) * 1e6)
    return times[warm:]


class Standin:
    def __init__(self, weights, shared, factor=1.0, limit=10**6):
        self.weights, self.factor, self.limit = weights, factor, limit

    def call(self, case):
        x, ids, probabilities = case
        if len(x) > self.limit:
            raise ValueError(f"at most {self.limit} tokens, got {len(x)}")
        moe = importlib.import_module("bench_moe").moe
        return lambda: self.factor * moe.reference.mxfp4_moe(x, *self.weights, ids, probabilities, swiglu_limit=10.0)


class Late(Standin):
    """Wrong in its last token as soon as there are more than 16."""

    def call(self, case):
        right = super().call(case)
        factor = torch.ones(len(case[0]), 1)
        factor[16:][-1:] = 1.5
        return lambda: right() * factor


def receipt_of(bench, monkeypatch, tmp_path, *options):
    out = tmp_path / "receipt.json"
    monkeypatch.setattr(sys, "argv", ["bench_moe.py", *options, "--samples", "2", "--out", str(out)])
    assert bench.main() == 0
    return json.loads(out.read_text())
