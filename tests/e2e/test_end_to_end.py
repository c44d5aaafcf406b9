"""The end-to-end scripts without a GPU: checkpoints, their draft layer, and a run against a stand-in server."""

import json
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scripts.checkpoints import make

ROOT = Path(__file__).resolve().parents[2]
E2E = ROOT / "benchmarks" / "e2e"
FAKE = ROOT / "tests" / "children" / "fake_server.py"


def python(*arguments, timeout=200, **settings):
    """A script's outcome, with no more settings of SGLang and CUDA in its environment than those named."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "CUDA_")) or k == "SGLANG_SM120_HOME"}
    kept |= {"PYTHONPATH": str(ROOT), **settings}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=kept, capture_output=True, text=True, timeout=timeout, check=False)


def tensors(directory):
    """Name -> array of one checkpoint, as bytes but for F32 and E8M0."""
    found = {}
    for file in directory.glob("*.safetensors"):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = (8 + size + offset for offset in entry["data_offsets"])
                dtype = np.float32 if entry["dtype"] == "F32" else np.uint8
                found[name] = np.frombuffer(data[begin:end], dtype), entry
    return found


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Format of the experts, and `dspark` -> directory."""
    root = tmp_path_factory.mktemp("models")
    shape = make.SMALL
    made = {kind: replace(shape, kind=kind) for kind in make.KINDS} | {"dspark": replace(shape, draft="dspark")}
    return {name: make.write(root / name, of) for name, of in made.items()}


@pytest.mark.parametrize(("name", "draft"), [("mxfp4", "nextn"), ("dspark", "dspark")])
def test_the_same_arguments_give_the_same_bytes(checkpoints, tmp_path, name, draft):
    shape = replace(make.SMALL, draft=draft)
    again = make.write(tmp_path / "again", shape, threads=1)
    for file in checkpoints[name].iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name
    other = make.write(tmp_path / "other", replace(shape, seed=1))
    for file in other.glob("*.safetensors"):
        assert file.read_bytes() != (again / file.name).read_bytes(), file.name


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("kind", "nvfp4", "kind is 'nvfp4'; expected one of mxfp4, hybrid-nvfp4, fp8"),
        ("draft", "eagle", "draft is 'eagle'; expected one of nextn, dspark"),
        ("layers", 0, "layers is 0; expected at least 1"),
    ],
)
def test_a_shape_that_does_not_exist_is_refused(field, value, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        replace(make.SMALL, **{field: value})


@pytest.mark.parametrize("script", ["checkpoints/make.py", "checkpoints/tiny.py"])
@pytest.mark.parametrize(
    ("arguments", "says"), [(("--experts", 1), "experts is 1"), (("--seed", -1), "seed is -1"), ((), "File exists")]
)
def test_a_checkpoint_that_cannot_be_written_is_an_error_of_one_line(tmp_path, script, arguments, says):
    (tmp_path / "file").touch()
    done = python(ROOT / "scripts" / script, tmp_path / ("out" if arguments else "file"), *arguments)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("layers", [(), ("--layers", 3), ("--layers", 5)])
def test_a_dspark_checkpoint_has_the_layers_that_sglang_asks_for(tmp_path, layers):
    """SGLang ends on fewer than four: "DFlash layer selection requires num_target_layers >= 4"."""
    out = tmp_path / "out"
    done = python(ROOT / "scripts" / "checkpoints" / "make.py", out, "--small", "--draft", "dspark", *layers)
    if 3 in layers:
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].endswith("layers is 3; expected at least 4 with a dspark draft")
        assert not out.exists()
        return
    assert done.returncode == 0, done.stderr
    config = json.loads((out / "config.json").read_text())
    assert config["num_hidden_layers"] == (5 if layers else 4)
    assert config["dspark_target_layer_ids"] == list(range(config["num_hidden_layers"]))[-3:]


def e4m3(codes):
    """Values of e4m3 codes that are neither NaN nor subnormal."""
    codes = codes.astype(int)
    values = 2.0 ** (((codes >> 3) & 15) - 7) * (1 + (codes & 7) / 8) * np.where(codes & 0x80, -1, 1)
    return np.where(codes & 0x7F, values, 0)


def e2m1(packed):
    """Values of packed e2m1 codes, low nibble first."""
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    return np.concatenate([values, -values])[np.stack([packed & 15, packed >> 4], axis=-1)].reshape(-1)


def test_all_kinds_hold_the_same_numbers(checkpoints):
    mxfp4, hybrid, fp8 = (tensors(checkpoints[kind]) for kind in ("mxfp4", "hybrid-nvfp4", "fp8"))
    expert = "layers.1.ffn.experts.3.w2."
    assert np.array_equal(mxfp4[expert + "weight"][0], hybrid[expert + "weight"][0])
    per_32 = 2.0 ** (mxfp4[expert + "scale"][0].astype(int) - 127)
    per_16 = e4m3(hybrid[expert + "weight_scale"][0]) * hybrid[expert + "weight_scale_2"][0]
    np.testing.assert_allclose(np.repeat(per_32, 2), per_16, rtol=2**-24)  # two thirds as a float32, times 1.5
    assert np.log2(hybrid[expert + "weight_scale_2"][0]) % 1 != 0  # else a kernel may take the layer for MXFP4
    rows, columns = fp8[expert + "weight"][1]["shape"]
    blocks = 2.0 ** (fp8[expert + "scale"][0].astype(int) - 127).reshape(rows // 128, columns // 128)
    values = e4m3(fp8[expert + "weight"][0]).reshape(rows, columns) * np.kron(blocks, np.ones((128, 128)))
    assert np.array_equal((e2m1(mxfp4[expert + "weight"][0]) * np.repeat(per_32, 32)).reshape(rows, columns), values)
    assert len(np.unique(per_32)) == 2
    for name, (found, _) in mxfp4.items():
        if ".experts." not in name:
            assert np.array_equal(found, fp8[name][0], equal_nan=True), name
        if ".experts." not in name or name.startswith("mtp."):
            assert np.array_equal(found, hybrid[name][0], equal_nan=True), name


def test_the_dspark_draft_proposes_the_successor(checkpoints):
    """The Markov head's largest value for each token is at the token that the target's head prefers after it."""
    found, vocabulary = tensors(checkpoints["dspark"]), make.SMALL.vocabulary

    def rows(name):
        bits = found[name][0].view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(vocabulary, -1)

    after = (np.arange(vocabulary) + make.SUCCESSOR) % vocabulary
    logits = rows("mtp.1.markov_head.markov_w1.weight") @ rows("mtp.1.markov_head.markov_w2.weight").T
    assert np.mean(logits.argmax(1) == after) > 0.99
    head = rows("embed.weight") @ rows("head.weight").T
    assert head[np.arange(vocabulary), after].mean() > 2 * head.std()
    # Nothing follows the noise token; else the head is the one of a checkpoint with the other draft.
    other = tensors(checkpoints["mxfp4"])["head.weight"][0].reshape(vocabulary, -1)
    differs = (found["head.weight"][0].reshape(vocabulary, -1) != other).any(1)
    assert list(np.flatnonzero(differs)) == [after[vocabulary - 1]]


@pytest.mark.sglang
def test_the_draft_loads_through_sglang_and_matches_the_oracle(checkpoints):
    done = python(ROOT / "scripts" / "layers" / "draft_layer.py", checkpoints["hybrid-nvfp4"], "--tp", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    assert answer["method"] == "Sm120Mxfp4MoEMethod"
    assert answer["error"] <= 3e-3


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
    assert [step["success"] for step in servers["ours-mxfp4"]["updates"]] == [True, True]
    assert str(tmp_path) not in receipt.read_text()


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


def test_the_document_is_what_the_receipts_say():
    done = python(E2E / "document.py", "--check")
    assert done.returncode == 0, done.stdout
