"""The kernel race's workloads, layouts and rows, without a GPU: kernels are stood in for by float64 on the CPU."""

from __future__ import annotations

import importlib
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def bench_path():
    kernels = str(ROOT / "benchmarks/kernels")
    sys.path.insert(0, kernels)
    yield
    sys.path.remove(kernels)


@pytest.fixture
def workload(monkeypatch):
    module = importlib.import_module("workload")
    monkeypatch.setattr(module, "DEVICE", "cpu")
    return module


@pytest.mark.parametrize("routing", ["uniform", "skewed", "speculative"])
@pytest.mark.parametrize("tokens", [1, 4, 10, 64])
def test_a_token_never_gets_an_expert_twice(workload, routing, tokens):
    for seed in range(20):
        _, ids, probabilities = workload.case(tokens, 256, 64, 6, routing, seed)
        assert ids.shape == (tokens, 6)
        assert all(len(set(row)) == 6 for row in ids.tolist())
        assert torch.allclose(probabilities.sum(-1), torch.ones(tokens))


@pytest.mark.parametrize("routing", ["uniform", "skewed", "speculative"])
@pytest.mark.parametrize("tokens", [1, 2, 8])
def test_calls_with_few_routes_share_no_expert_with_the_next_call(workload, routing, tokens):
    seen = [set(workload.case(tokens, 256, 64, 6, routing, seed)[1].flatten().tolist()) for seed in range(5)]
    assert all(a.isdisjoint(b) for a, b in itertools.pairwise(seen))


@pytest.mark.parametrize("experts", [256, 384])
def test_skewed_routing_gives_the_hottest_expert_24_times_the_mean(workload, experts):
    ids = torch.cat([workload.case(4096, experts, 32, 6, "skewed", seed)[1] for seed in range(4)])
    load = torch.bincount(ids.flatten(), minlength=experts).double()
    assert load.max() / load.mean() == pytest.approx(24, rel=0.05)
    assert load.argmax() == 0


def test_speculative_groups_of_two_to_six_share_most_of_their_experts(workload):
    ids = workload.case(4096, 256, 32, 6, "speculative", 0)[1]
    shared = (ids[1:, :, None] == ids[:-1, None, :]).any(-1).double().mean(-1)
    follows = shared >= 3 / 6
    assert 0.5 < follows.double().mean() < 0.85  # three of four neighbours are in one group
    assert shared[follows].mean() > 0.6
    distinct = [len(set(ids[i : i + 6].flatten().tolist())) for i in range(0, 4000, 6)]
    assert sum(distinct) / len(distinct) < 26  # of 36 routes; independent tokens would hit 34


def weights_of(experts, hidden, inter, seed=0):
    g = torch.Generator().manual_seed(seed)
    draw = lambda low, high, *shape: torch.randint(low, high, shape, dtype=torch.uint8, generator=g)  # noqa: E731
    return (
        draw(0, 256, experts, 2 * inter, hidden // 2),
        draw(119, 123, experts, 2 * inter, hidden // 32),
        draw(0, 256, experts, hidden, inter // 2),
        draw(119, 123, experts, hidden, inter // 32),
    )


@pytest.mark.parametrize("inter", [32, 96, 128])
def test_padding_the_intermediate_size_does_not_change_the_layer(workload, inter):
    common = importlib.import_module("contestants.common")
    moe = importlib.import_module("bench_moe").moe
    weights = weights_of(4, 64, inter)
    padded = common.pad_intermediate(weights, 128)
    assert padded[0].shape == (4, 256, 32)
    assert padded[3].shape == (4, 64, 4)
    x, ids, p = workload.case(5, 4, 64, 2, "speculative", 0)
    want, got = (moe.reference.mxfp4_moe(x, *w, ids, p, swiglu_limit=10.0) for w in (weights, padded))
    assert torch.allclose(want, got, rtol=1e-12, atol=1e-12)
    assert (padded is weights) == (inter == 128)


@pytest.fixture
def bench(workload, monkeypatch):
    """bench_moe with layers of 8 experts on the CPU, wall-clock times and stand-ins for the kernels."""
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


def test_only_checked_outputs_get_a_time_and_the_others_say_why(bench, monkeypatch, tmp_path):
    options = [
        "--shapes",
        "tiny",
        "--tokens",
        "1,32",
        "--routings",
        "uniform",
        "--contestants",
        "good,wrong,absent,small,late",
    ]
    receipt = receipt_of(bench, monkeypatch, tmp_path, *options)
    failed = receipt["failed"]["tiny"]
    assert "relative error 2.0e-02" in failed["wrong"]
    assert "no_such_kernel_library" in failed["absent"]
    one, many = receipt["rows"]
    assert set(one["us"]) == {"good", "small", "late"}
    assert set(many["us"]) == {"good"}
    assert "at most 16 tokens" in many["failed"]["small"]
    assert "not timed" in many["failed"]["late"]
    assert receipt["errors"]["tiny"]["good"] < 1e-6
    assert many["errors"]["good"] < 1e-6
    assert receipt["versions"]["no-such-package"] == "not installed"
    assert receipt["versions"]["torch"] == importlib.import_module("importlib.metadata").version("torch")
    assert len(one["raw"]["good"]) == 2


def test_a_receipt_names_the_checkouts_commit_wherever_it_is_made(bench, monkeypatch, tmp_path):
    def head():
        command = ["git", "-C", ROOT, "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    before = head()
    monkeypatch.chdir(tmp_path)
    options = ["--shapes", "tiny", "--tokens", "1", "--routings", "uniform", "--contestants", "good"]
    assert receipt_of(bench, monkeypatch, tmp_path, *options)["commit"] in {before, head()}
    options += ["--commit", "0123abcd"]
    assert receipt_of(bench, monkeypatch, tmp_path, *options)["commit"] == "0123abcd"


def test_one_option_runs_a_set_of_rows(bench, monkeypatch, tmp_path):
    profile = bench.rows_of(["tiny", "other"], ["uniform"], [1]) + bench.rows_of(["tiny"], ["skewed"], [2])
    monkeypatch.setitem(bench.PROFILES, "table", profile)
    receipt = receipt_of(bench, monkeypatch, tmp_path, "--rows", "table", "--contestants", "good")
    assert [(r["shape"], r["routing"], r["tokens"]) for r in receipt["rows"]] == [
        ("tiny", "uniform", 1), ("tiny", "skewed", 2), ("other", "uniform", 1),
    ]  # fmt: skip

    receipt = receipt_of(bench, monkeypatch, tmp_path, "--rows", "table", "--shapes", "other", "--contestants", "good")
    assert [r["shape"] for r in receipt["rows"]] == ["other"]


def test_a_shape_that_there_is_not_is_named(bench, monkeypatch, tmp_path):
    """Before anything is measured or an earlier receipt is overwritten."""
    with pytest.raises(SystemExit, match=r"--shapes names 'tinny', expected some of tiny"):
        receipt_of(bench, monkeypatch, tmp_path, "--shapes", "tinny")
    monkeypatch.setitem(bench.PROFILES, "table", bench.rows_of(["tiny"], ["uniform"], [1]))
    with pytest.raises(SystemExit, match=r"--shapes names 'other', expected some of tiny$"):
        receipt_of(bench, monkeypatch, tmp_path, "--rows", "table", "--shapes", "tiny,other")


def test_the_profiles_hold_the_published_shapes(bench_path, monkeypatch):
    bench = importlib.import_module("bench_moe")
    table, shapes = bench.PROFILES["table"], bench.PROFILES["shapes"]
    assert len(table) == 4 * (12 + 9 + 9)
    assert {s for s, _, _ in shapes} == {f"{m}-tp{n}" for m in ("v4-pro", "v4.1-flash") for n in (1, 2, 4, 8)}
    assert {t for _, _, t in shapes} == {1, 4, 16, 64, 256, 4096}


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
