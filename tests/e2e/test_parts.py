"""Parts of the end-to-end scripts: GPUs, ports, checkpoints of several runs, the time of phases, the document."""

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.e2e import bench, client, session, workloads
from benchmarks.e2e.servers import gpus as server_gpus
from benchmarks.e2e.servers import launches, ports
from scripts.checkpoints import make
from scripts.pages import server_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "program", ["e2e/run.py", "e2e/receipt.py", "e2e/deep.py", "e2e/first_difference.py", "reports/compare.py"]
)
def test_a_copied_tree_runs_without_an_environment(tmp_path, program):
    """As on a machine with GPUs and no network: neither this package nor another is where that Python looks."""
    for folder in ("benchmarks", "overlay"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("receipts"))
    command = [sys.executable, "-I", "-S", str(tmp_path / "benchmarks" / program), "--help"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


@pytest.mark.parametrize(
    ("gpus", "listed", "got"),
    [("0", None, "0"), ("0,1", None, "0,1"), ("0", "2,3", "2"), ("1", "2,3", "3"), ("0,1", "3, 2", "3,2"),
     ("0", "GPU-ab12,GPU-cd34", "GPU-ab12"), ("0", "2,-1,3", "2")],
)  # fmt: skip
def test_gpus_of_a_launch_are_counted_among_those_of_the_run(gpus, listed, got):
    launch = replace(launches.MAIN[0], gpus=gpus)
    assert server_gpus.of(launch, listed) == got
    assert server_gpus.used([launch], listed) == got.split(",")


@pytest.mark.parametrize(("gpus", "listed"), [("1", "3"), ("0,1", "3"), ("0", ""), ("1", "2,-1,3")])
def test_a_run_with_too_few_gpus_names_the_launch_and_the_variable(gpus, listed):
    launch = replace(launches.MAIN[0], gpus=gpus)
    says = f"stock-hybrid runs on GPUs {gpus} of CUDA_VISIBLE_DEVICES, which is {listed!r}; expected a list of at least"
    with pytest.raises(ValueError, match=re.escape(says)):
        server_gpus.of(launch, listed)


def test_ports_that_the_system_hands_out_are_refused():
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with pytest.raises(ValueError, match="which the system gives to others"):
        ports.check(low - 500, 2)


WRITE = """
import sys
from pathlib import Path
from benchmarks.e2e import checkpoints
print(checkpoints.write(Path(sys.argv[1]), "mxfp4", 0, ("--small",)))
"""


def write(models):
    """One run's part in writing a checkpoint."""
    settings = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRITE, str(models)]
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=100, check=False)


def test_two_runs_write_one_checkpoint(tmp_path):
    models = tmp_path / "models"
    part = models / ".mxfp4-0.part"
    part.mkdir(parents=True)
    (part / "model-00009-of-00009.safetensors").touch()  # of a run that was killed
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: write(models), range(3)))
    assert sorted(d.stdout for d in done) == ["False\n", "False\n", "True\n"], [d.stderr for d in done]
    whole = make.write(tmp_path / "whole", make.SMALL)
    assert {f.name: f.read_bytes() for f in (models / "mxfp4-0").iterdir()} == {
        f.name: f.read_bytes() for f in whole.iterdir()
    }
    assert not part.exists()


def test_something_else_under_a_checkpoints_name_is_refused(tmp_path):
    (tmp_path / "mxfp4-0").mkdir()
    done = write(tmp_path)
    assert done.stderr.splitlines()[-1].endswith("mxfp4-0 has no config.json; expected a checkpoint, or nothing, there")


def test_the_phases_of_a_run_fit():
    """Beside the time for starting and asking; servers of two GPUs are measured alone, the others in pairs."""
    for groups, rounds in (({"two-gpus"}, [1, 1]), ({"load", "kinds"}, [2])):
        chosen = [launch for launch in launches.LAUNCHES if launch.group in groups]
        assert [len(turn) for turn in workloads._bench_rounds(chosen)] == rounds
        assert 200 < workloads.seconds(chosen, 1.0, 1, True) < (1 - session.TO_START) * (600 - session.CLOSING)


class Stopwatch:
    """Stands for a run with `left` seconds, whose servers all serve."""

    out, share = Path(), 1.0

    def __init__(self, left, names):
        self.until = time.monotonic() + left
        self.results = {name: {} for name in names}
        self.servers = {name: SimpleNamespace(url=name) for name in names}
        self.left_out = []

    def serving(self):
        return list(self.servers)

    def leave_out(self, name, what):
        self.left_out.append((name, what))

    def model(self, _kind):
        return Path()

    def say(self, _text):
        pass


@pytest.mark.parametrize(("left", "of_each_rate"), [(400, 45), (200, 29.5), (100, None)])
def test_the_serving_benchmark_is_cut_to_the_time_that_is_left(monkeypatch, left, of_each_rate):
    asked = {}
    chosen = [launch for launch in launches.LOAD if launch.bench]

    def measure(url, _model, _out, rates, timeout):
        asked[url] = [seconds for _, seconds in rates], timeout
        return [{"request_rate": rate} for rate, _ in rates[:3]], "not done"

    monkeypatch.setattr(bench, "run", measure)
    monkeypatch.setattr(client, "generate", lambda *_, **__: {})
    run = Stopwatch(left, [launch.name for launch in chosen])
    workloads.benches(run, chosen, with_updates=True)
    names = ["load-stock-mxfp4", "load-ours-mxfp4"]
    if of_each_rate is None:
        assert run.left_out == [(name, "serving benchmark: too little time was left") for name in names]
        return
    assert sorted(run.left_out) == sorted((n, "serving benchmark at 32 requests/s: not done") for n in names)
    for seconds, timeout in asked.values():
        assert seconds == pytest.approx([of_each_rate] * 4, abs=0.6)
        assert timeout == pytest.approx(left - workloads.KILL, abs=1)


@pytest.mark.parametrize(
    ("left", "missed", "seconds"), [(400, None, 60), (81, "1280, 1536, 1792, 2048", 18), (60, None, None)]
)
def test_first_prefills_that_compile_for_long_leave_time_for_the_benchmark(monkeypatch, left, missed, seconds):
    """Two of the sizes take as long as on a server of two GPUs; what was not reached is noted."""
    now, asked = [1000.0], []
    chosen = [launch for launch in launches.LAUNCHES if launch.name == "tp2-stock-mxfp4"]

    def generate(_url, ids, _new, timeout):
        needed = {768: 16.0, 1280: 14.0}.get(len(ids), 0.2)
        now[0] += min(needed, timeout)
        return {"error": "TimeoutError: timed out"} if needed > timeout else {"seconds": needed}

    def measure(_url, _model, _out, rates, _timeout):
        asked.extend(rates)
        return [{"request_rate": rate} for rate, _ in rates], ""

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(client, "generate", generate)
    monkeypatch.setattr(bench, "run", measure)
    run = Stopwatch(left, ["tp2-stock-mxfp4"])
    workloads.benches(run, chosen, with_updates=False)
    if seconds is None:
        assert run.left_out == [("tp2-stock-mxfp4", "serving benchmark: too little time was left")]
        return
    assert asked == [(8.0, pytest.approx(seconds))]
    what = f"first prefills of {missed} tokens: the serving benchmark may have met compilations"
    assert run.left_out == [("tp2-stock-mxfp4", what)] * bool(missed)


BENCH = dict.fromkeys(("request_rate", "completed", "requests", "duration", "output_throughput", "concurrency"), 1.0)
BENCH |= {f"{p}_{what}_ms": 2.5 for what in ("ttft", "tpot", "e2e_latency") for p in ("median", "p99")}
BENCH["accept_length"] = 1.88849


def test_a_document_has_both_servers_of_a_rate_below_each_other_and_what_was_left_out():
    server = {
        "says": "a server",
        "env": {},
        "gpus": "2",
        "command": ["python", "--all"],
        "log": [],
        "weights": "checkpoint",
    }
    servers = {
        name: server | {"bench": [BENCH | {"request_rate": rate} for rate in (4.0, 8.0)]} for name in ("stock", "ours")
    }
    servers["ours"]["killed"] = {"killed": "scheduler", "ended_after_s": 3.0, "status": -9, "requests_answered": 20}
    servers["ours"]["killed"] |= {"requests_failed": 44, "left": []}
    servers["stock"]["killed"] = {"error": "no scheduler process was found"}
    servers["slow"] = server | {"killed": servers["ours"]["killed"] | {"ended_after_s": 27.0, "status": None}}
    asked = {"alone": [{"ids": [1]}], "long": [{"ids": [1]}], "many": [{"ids": [1]}]}
    asked["logprobs"] = [{"error": "refused"}]
    servers["slow"]["answers"] = asked
    servers["ours"]["log"] = ["read", '  File "a.py", line 1', "    x", "ValueError: 3"]
    servers["slow"]["log"] = ["read too", *servers["ours"]["log"][1:]]
    about = {"versions": {}, "gpu": "2 x a GPU", "commit": "0" * 40, "date": "2026-01-01", "common_flags": ["--all"]}
    about |= {"servers": servers, "comparisons": {}, "notes": [], "left_out": {"ours": ["a question", "an update"]}}
    lines = "\n".join(server_run.section("a", about)).splitlines()
    rates = [line.split(" | ")[:2] for line in lines if " | 2.5 | " in line]
    assert rates == [["| `stock`", "4.0"], ["| `ours`", "4.0"], ["| `stock`", "8.0"], ["| `ours`", "8.0"]]
    measured = [line for line in lines if " | 2.5 | " in line]
    assert all(line.endswith(" | 2.5 | 1.888 |") for line in measured)
    assert "| `ours` | a question; an update |" in lines
    assert "| `ours` | scheduler | 3.0 | signal 9 | 20 | 44 | nothing |" in lines
    assert "| `slow` | scheduler | not within 27.0 | still running | 20 | 44 | nothing |" in lines
    assert "| `slow` | not asked | 1 of 1 | not asked | not asked | not asked |" in lines
    assert "| `slow` | 4, 1 errors | not asked | not answered | not asked |  |" in lines
    assert "`stock`: no scheduler process was found." in lines
    assert "CUDA_VISIBLE_DEVICES=2 python …" in lines
    assert lines.count('  File "a.py", line 1') == 1
    assert lines[lines.index("read too") + 1] == "... as ours: ValueError: 3"
