"""The end-to-end scripts without a GPU: a run against a stand-in server."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
E2E = ROOT / "benchmarks" / "e2e"
FAKE = ROOT / "tests" / "children" / "fake_server.py"


def python(*arguments, timeout=200, **settings):
    """A script's outcome, with no more settings of SGLang and CUDA in its environment than those named."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "CUDA_")) or k == "SGLANG_SM120_HOME"}
    kept |= {"PYTHONPATH": str(ROOT), **settings}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=kept, capture_output=True, text=True, timeout=timeout, check=False)


def groups_of(out):
    """Processes whose command line names the run's directory."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(out) in line and "fake_server" in line]


def free_port():
    """A port of the lower half, so that the servers' ports above it exist."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return 10000 + probe.getsockname()[1] % 10000


def test_a_run_that_cannot_have_its_gpus_or_ports_starts_nothing(tmp_path):
    out = tmp_path / "out"
    done = python(E2E / "run.py", "--out", out, "--only", "tp2-hybrid", CUDA_VISIBLE_DEVICES="3")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("'3'; expected a list of at least 2")
    with socket.socket() as taken:
        first = free_port()
        taken.bind(("127.0.0.1", first + 300))
        taken.listen()
        done = python(E2E / "run.py", "--out", out, "--only", "ours-hybrid", "stock-mxfp4", "--port", first)
    assert done.returncode == 2
    assert f"--port is {first}, and port {first + 300} is taken" in done.stderr.splitlines()[-1]
    done = python(E2E / "run.py", "--out", out, "--only", "ours-hybrid", "stock-mxfp4", "--port", 65400)
    assert done.returncode == 2
    assert "--port is 65400, so 2 servers use ports to 65999" in done.stderr.splitlines()[-1]
    assert list(out.iterdir()) == []


def test_other_formats_and_dspark_beside_another_run(tmp_path):
    """Two runs at a time, on GPUs of their own, with the same checkpoints."""
    first, models = free_port(), tmp_path / "models"

    def run(name, at, *options):
        options = [*options, "--small", "--limit", 60, "--models", models, "--port", at]
        command = [E2E / "run.py", "--out", tmp_path / name, *options, "--command", sys.executable, FAKE]
        return python(*command, CUDA_VISIBLE_DEVICES="2,3")

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(run, "kinds", first, "--groups", "kinds")]
        jobs.append(pool.submit(run, "other", first + 2000, "--only", "ours-fp8", "ours-hybrid"))
        for done in (job.result() for job in jobs):
            assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "kinds" / "result.json").read_text())
    servers = document["servers"]
    assert document["gpus"] == ["2", "3"]
    assert {name: server["gpus"] for name, server in servers.items()} == {
        "ours-fp8": "2", "stock-hybrid-dspark": "3", "ours-hybrid-dspark": "2"
    }  # fmt: skip
    assert "CUDA_VISIBLE_DEVICES=2" in (tmp_path / "kinds" / servers["ours-fp8"]["log"]).read_text().splitlines()
    assert servers["stock-hybrid-dspark"]["said"].startswith("ImportError: cannot import name 'flashinfer_mxfp8_quanti")
    assert servers["ours-fp8"]["outcome_after_requests"] == "serves"
    assert servers["ours-hybrid-dspark"]["outcome_after_requests"] == "serves"
    dspark = json.loads((models / "hybrid-nvfp4-dspark-0" / "config.json").read_text())
    assert (dspark["dspark_block_size"], dspark["num_hidden_layers"]) == (5, 4)
    assert document["left_out"] == {}


def test_a_late_server_is_stopped_and_the_phases_go_on(tmp_path):
    """One server is never ready; the other gets its load, and the result says what was left out."""
    late = tmp_path / "late.py"
    late.write_text(
        "import os, runpy, sys, time\n"
        "time.sleep(1000 * ('--disable-cuda-graph' in sys.argv))\n"
        f"runpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
    )
    out = tmp_path / "out"
    options = ["--only", "stock-mxfp4", "ours-hybrid-eager", "--no-updates", "--small", "--limit", 60]
    options += ["--port", free_port()]
    done = python(E2E / "run.py", "--out", out, *options, "--command", sys.executable, late)
    assert done.returncode == 1
    assert "otherwise than expected: ours-hybrid-eager" in done.stdout
    document = json.loads((out / "result.json").read_text())
    assert [row["at_once"] for row in document["servers"]["stock-mxfp4"]["loads"]] == [1, 4, 8]
    assert document["servers"]["ours-hybrid-eager"]["outcome"] == "not ready in time"
    assert document["servers"]["ours-hybrid-eager"]["left"] == []
    assert document["left_out"] == {
        "ours-hybrid-eager": ["everything: it was stopped, so that it does not disturb the others"]
    }
    assert python(E2E / "receipt.py", out, tmp_path / "receipts" / "late.json").returncode == 0


def test_a_run_and_its_receipt(tmp_path):
    out, receipt = tmp_path / "out", tmp_path / "receipt.json"
    options = ["--small", "--limit", 60, "--port", free_port()]
    done = python(E2E / "run.py", "--out", out, *options, "--command", sys.executable, FAKE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert groups_of(out) == []
    assert python(E2E / "receipt.py", out, receipt, "--note", "A stand-in.").returncode == 0
    document = json.loads(receipt.read_text())
    servers = document["servers"]
    assert servers["stock-hybrid"]["outcome"] == "ended"
    assert servers["stock-hybrid"]["log"][-1].startswith("ImportError: cannot import name 'flashinfer_mxfp8_quantize'")
    assert servers["ours-hybrid"]["outcome_after_requests"] == "serves"
    assert document["comparisons"]["stock-mxfp4 / ours-mxfp4"]["identical"] == 8
    assert str(tmp_path) not in receipt.read_text()


def test_a_run_updates_a_server_and_compares_it_with_its_twin(tmp_path):
    options = ["--only", "nvfp4-ours", "nvfp4-ours-twin", "--small", "--limit", 60, "--port", free_port()]
    done = python(E2E / "run.py", "--out", tmp_path, *options, "--command", sys.executable, FAKE)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "result.json").read_text())
    assert [step["success"] for step in document["servers"]["nvfp4-ours"]["updates"]] == [True] * 3


def test_faults_end_with_their_messages_and_leave_nothing(tmp_path):
    out = tmp_path / "out"
    options = ["--groups", "faults", "--small", "--limit", 60, "--port", free_port()]
    done = python(E2E / "run.py", "--out", out, *options, "--command", sys.executable, FAKE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert groups_of(out) == []
    assert not (out / "full").is_mount()
    servers = json.loads((out / "result.json").read_text())["servers"]
    assert "did not deliver" in servers["fault-missing-tensor"]["said"]
    assert "SafetensorError" in servers["fault-corrupt-shard"]["said"]
    assert servers["fault-no-room"]["outcome"] in ("ended", "not run: this user may not mount")


def test_a_fault_that_ends_with_another_message_is_reported(tmp_path):
    options = ["--only", "fault-missing-tensor", "--small", "--limit", 60, "--port", free_port()]
    silent = tmp_path / "silent.py"
    silent.write_text("raise SystemExit('something else')")
    done = python(E2E / "run.py", "--out", tmp_path / "out", *options, "--command", sys.executable, silent)
    assert done.returncode == 1
    assert "otherwise than expected: fault-missing-tensor" in done.stdout


@pytest.mark.sglang
def test_a_server_of_two_ranks_under_sglangs_benchmark_and_one_rank_killed(tmp_path):
    out, receipt = tmp_path / "out", tmp_path / "receipt.json"
    options = ["--only", "tp2-ours-mxfp4", "--small", "--limit", 150, "--port", free_port()]
    done = python(E2E / "run.py", "--out", out, *options, "--command", sys.executable, FAKE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert groups_of(out) == []
    assert python(E2E / "receipt.py", out, receipt).returncode == 0
    server = json.loads(receipt.read_text())["servers"]["tp2-ours-mxfp4"]
    assert [(row["completed"], row["request_rate"]) for row in server["bench"]] == [(24, 8.0)], server["bench_error"]
    assert [row["prompt_tokens"] for row in server["sizes"]] == list(range(256, 2049, 256))
    assert all("error" not in row for row in server["sizes"])
    assert server["killed"]["killed"].startswith("sglang::scheduler_TP")
    assert server["killed"]["status"] == 1
    assert server["killed"]["left"] == []
    assert server["killed"]["requests_failed"] > 0
    assert server["answers"]["aborted"][0]["finished"] == "abort"


def test_a_server_that_should_serve_and_ends_is_reported(tmp_path):
    command = ["--only", "ours-hybrid", "--command", "/bin/false"]
    done = python(E2E / "run.py", "--out", tmp_path, "--small", "--limit", 30, *command)
    assert done.returncode == 1
    assert "otherwise than expected: ours-hybrid" in done.stdout
    assert json.loads((tmp_path / "result.json").read_text())["servers"]["ours-hybrid"]["outcome"] == "ended"
