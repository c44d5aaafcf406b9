"""The end-to-end scripts without a GPU: checkpoints, their draft layer, and a run against a stand-in server."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import make_checkpoint

ROOT = Path(__file__).resolve().parents[2]
E2E = ROOT / "benchmarks" / "e2e"
FAKE = Path(__file__).with_name("fake_server.py")


def python(*arguments, timeout=200):
    """A script's outcome, without settings of SGLang in its environment."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_") or k == "SGLANG_SM120_HOME"}
    kept |= {"PYTHONPATH": str(ROOT / "scripts")}
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
    root = tmp_path_factory.mktemp("models")
    shape = make_checkpoint.SMALL
    kinds = {kind: make_checkpoint.replace(shape, kind=kind) for kind in make_checkpoint.KINDS}
    return {kind: make_checkpoint.write(root / kind, of) for kind, of in kinds.items()}


def test_the_same_arguments_give_the_same_bytes(checkpoints, tmp_path):
    again = make_checkpoint.write(tmp_path / "again", make_checkpoint.SMALL, threads=1)
    for file in checkpoints["mxfp4"].iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name
    other = make_checkpoint.write(tmp_path / "other", make_checkpoint.replace(make_checkpoint.SMALL, seed=1))
    assert (other / "model-00002-of-00004.safetensors").read_bytes() != (
        again / "model-00002-of-00004.safetensors"
    ).read_bytes()


def test_both_kinds_hold_the_same_numbers(checkpoints):
    mxfp4, hybrid = tensors(checkpoints["mxfp4"]), tensors(checkpoints["hybrid-nvfp4"])
    expert = "layers.1.ffn.experts.3.w2."
    assert np.array_equal(mxfp4[expert + "weight"][0], hybrid[expert + "weight"][0])
    per_32 = 2.0 ** (mxfp4[expert + "scale"][0].astype(int) - 127)
    codes = hybrid[expert + "weight_scale"][0].astype(int)
    per_16 = 2.0 ** ((codes >> 3) - 7) * (1 + (codes & 7) / 8) * hybrid[expert + "weight_scale_2"][0]
    assert np.array_equal(np.repeat(per_32, 2), per_16)
    for name, (values, _) in mxfp4.items():
        if ".experts." not in name or name.startswith("mtp."):
            assert np.array_equal(values, hybrid[name][0], equal_nan=True), name


@pytest.mark.sglang
def test_the_draft_loads_through_sglang_and_matches_the_oracle(checkpoints):
    done = python(ROOT / "scripts" / "draft_layer.py", checkpoints["hybrid-nvfp4"], "--tp", "2")
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


def test_a_server_that_should_serve_and_ends_is_reported(tmp_path):
    command = ["--only", "ours-hybrid", "--command", "/bin/false"]
    done = python(E2E / "run.py", "--out", tmp_path, "--small", "--limit", 30, *command)
    assert done.returncode == 1
    assert "otherwise than expected: ours-hybrid" in done.stdout
    assert json.loads((tmp_path / "result.json").read_text())["servers"]["ours-hybrid"]["outcome"] == "ended"


def test_the_document_is_what_the_receipts_say():
    done = python(E2E / "document.py", "--check")
    assert done.returncode == 0, done.stdout
