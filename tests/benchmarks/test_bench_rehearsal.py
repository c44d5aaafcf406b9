"""Contestants that cannot run are found before the race, in processes of their own."""

from __future__ import annotations

import importlib
import time
from types import SimpleNamespace

import psutil
import pytest
from race_stand_ins import Standin

CHILD = """
import os, signal, sys, time
shape, name, tokens, weights = sys.argv[1:]
assert weights == "mxfp4"
log = open({log!r}, "a")
print("start", shape, name, tokens, file=log, flush=True)
time.sleep(0.3)
if name == "raises":
    raise ValueError("no such layout\\nand a hint of three more lines")
if name == "dies":
    os.kill(os.getpid(), signal.SIGSEGV)
if name == "hangs":
    time.sleep(60)
print("end", shape, name, tokens, file=log, flush=True)
"""


@pytest.fixture
def rehearsal(workload, monkeypatch, tmp_path):
    module = importlib.import_module("rehearsal")
    contestants = importlib.import_module("contestants")
    table = {n: contestants.Contestant(Standin, compiles=n == "good") for n in ("good", "raises", "dies", "hangs")}
    monkeypatch.setattr(module, "CONTESTANTS", table)
    child, log = tmp_path / "child.py", tmp_path / "log"
    child.write_text(CHILD.format(log=str(log)))
    monkeypatch.setattr(module, "__file__", str(child))
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=time.sleep, time=lambda: clock(log)))
    return module, log


def clock(log):
    """Stands still until nothing but the contestant that hangs runs any more, however long the others take."""
    children = [p.cmdline() for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]
    others = [c for c in children if str(log.with_name("child.py")) in c and "hangs" not in c]
    hangs = log.exists() and " hangs " in log.read_text()
    return 1e9 if hangs and not others else 0.0


def test_a_rehearsal_says_why_a_contestant_cannot_run(rehearsal):
    module, log = rehearsal
    rows = [("v4-flash-tp4", "uniform", t) for t in (1, 16, 256)]
    failed = module.rehearse(rows, ["good", "raises", "dies", "hangs"], 4)["v4-flash-tp4"]
    assert failed == {
        "raises": "rehearsal ended with 1: ValueError: no such layout",
        "dies": "rehearsal ended with -11: no message",
        "hangs": "not ready after 300 s",
    }
    started = log.read_text()
    assert "start v4-flash-tp4 good 1,16,256\n" in started  # it compiles for each token count
    assert "start v4-flash-tp4 raises 1,256\n" in started


def test_a_rehearsal_keeps_to_the_memory_of_the_gpu(rehearsal, monkeypatch):
    module, log = rehearsal
    monkeypatch.setattr(module, "MEMORY", 60e9)
    rows = [(f"v4-pro-tp{n}", "uniform", 1) for n in (1, 2, 4, 8)]
    assert module.rehearse([*rows, ("v4-flash-tp8", "uniform", 1)], ["good"], 16) == {}
    together, most = 0.0, 0.0
    for line in log.read_text().splitlines():
        kind, shape, *_ = line.split()
        together += module.memory_of(shape) * (1 if kind == "start" else -1)
        most = max(most, together)
    assert most <= module.MEMORY


def test_a_rehearsal_begins_no_job_when_its_time_is_over(rehearsal):
    """What has begun is waited for; the rest is left to the race."""
    module, log = rehearsal
    rows = [(f"v4-flash-tp{n}", "uniform", 1) for n in (8, 4)]
    assert module.rehearse(rows, ["good"], 1, seconds=-1.0) == {}
    assert "v4-flash-tp4" not in (log.read_text() if log.exists() else "")
