"""`selftest --sm120-code`: a process for each Triton and architecture, their receipt and verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile

import pytest

from sglang_sm120 import cli
from sglang_sm120.commands.selftest import command as selftest
from sglang_sm120.commands.selftest.sm120_code import command, compiling, tritons

STUB = """
import json, os, sys, time
import triton
a = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("cases", file=sys.stderr)
if a["--arch"] == os.environ.get("STUB_HANGS"):
    time.sleep(60)
if a["--arch"] == os.environ.get("STUB_DIES"):
    sys.exit("out of memory")
error = ["gate_up: in use and not run"] if a["--arch"] == os.environ.get("STUB_WRONG") else []
tile = {"tile": "gate_up", "ok": not error, "replaced": {".target": 1, "f32x2": 7, "block-scaled MMA": 16}}
case = {"case": "V4", "mode": "bf16", "error": 1.5e-3, "wrong": []}
json.dump({"triton": triton.__version__, "arch": a["--arch"], "tiles": [tile], "cases": [case], "errors": error,
           "lean": "--lean" in sys.argv}, open(a["--out"], "w"))
sys.exit(bool(error))
"""
ABOUT = {"versions": {}, "device": {"name": "NVIDIA H200"}}


@pytest.fixture
def stub(monkeypatch, tmp_path):
    """A proof that runs nothing, with the Triton that is first on its path."""
    (tmp_path / "stub_proof.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(command, "MODULE", "stub_proof")
    monkeypatch.setattr(command, "require_sm90", lambda: None)
    return tmp_path


def other_triton(directory, version):
    (directory / "triton").mkdir(parents=True)
    (directory / "triton" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    return directory


def test_every_triton_and_architecture_has_a_process(stub, monkeypatch):
    one, two = other_triton(stub / "3.7.1", "3.7.1"), other_triton(stub / "more" / "3.9.0", "3.9.0").parent
    monkeypatch.setattr(sys, "argv", ["sglang-sm120", "selftest", "--triton", str(one)])
    lines = []
    document = command.run([one, two], True, ABOUT, lines.append)
    runs = [(r["triton"], r["arch"]) for r in document["runs"]]
    assert runs[2:] == [(v, a) for v in ("3.7.1", "3.9.0") for a in ("sm_120a", "sm_121a")]
    assert [a for _, a in runs[:2]] == ["sm_120a", "sm_121a"]
    assert all(r["lean"] for r in document["runs"])
    assert document["errors"] == []
    assert sum("cases" in line for line in lines) == 6
    assert str(stub) not in json.dumps(document)
    shown = command.render(document)
    assert "Replaced: 42 f32x2, 96 block-scaled MMA" in shown
    assert "1.5e-03" in shown
    assert shown.endswith("for the instructions replaced, which it lacks.")
    assert max(map(len, shown.splitlines()[:-2])) <= 80


@pytest.mark.parametrize(("variable", "said"), [("STUB_WRONG", "in use and not run"), ("STUB_DIES", "status 1: out of memory")])  # fmt: skip  # noqa: E501
def test_an_error_in_one_is_an_error_of_all(stub, monkeypatch, variable, said):
    monkeypatch.setenv(variable, "sm_121a")
    document = command.run([], False, ABOUT)
    (error,) = document["errors"]
    assert "sm_121a" in error
    assert said in error
    assert "WRONG" in command.render(document)


def test_one_that_hangs_is_named_and_the_other_is_kept(stub, monkeypatch):
    monkeypatch.setenv("STUB_HANGS", "sm_120a")
    document = command.run([], True, ABOUT, minutes=0.2)
    (error,) = document["errors"]
    assert "sm_120a: its process ended at the end of --minutes: cases" in error
    assert [len(r["tiles"]) for r in document["runs"]] == [0, 1]


def test_it_refuses_without_an_sm90(capsys, tmp_path):
    receipt = tmp_path / "r.json"
    if compiling_works():
        pytest.skip("this is an SM90")
    assert cli.main(["selftest", "--sm120-code", "--receipt", str(receipt)]) == 1
    assert "runs on an SM90 (H100, H200, GH200)" in capsys.readouterr().err
    assert not receipt.exists()


def compiling_works():
    try:
        compiling.require_sm90()
    except compiling.WrongGpu:
        return False
    return True


@pytest.mark.parametrize("words", [["--lean"], ["--triton", "x"], ["--minutes", "3"]])
def test_its_flags_need_it(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["selftest", *words])
    assert stopped.value.code == 2
    assert "--sm120-code" in capsys.readouterr().err


def test_its_document_is_shown_as_its_own():
    document = {"kind": "sm120-code", **ABOUT, "planned_for": {"188": ""}, "runs": [], "errors": []}
    assert selftest.render_any(document).startswith("SM120's code on NVIDIA H200")


def test_wheels_are_unpacked_with_tools_that_run(tmp_path):
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = f"triton-3.9.0-{tag}-{tag}-manylinux_2_27_x86_64.whl"
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        wheel.writestr("triton/__init__.py", "__version__ = '3.9.0'\n")
        wheel.writestr(f"{tritons.TOOLS}/ptxas-blackwell", "#!/bin/sh\necho assembled\n")
    (found,) = tritons.found_in([tmp_path], tmp_path / "to")
    tool = found / tritons.TOOLS / "ptxas-blackwell"
    assert subprocess.run([tool], capture_output=True, text=True, check=True).stdout == "assembled\n"
    env = os.environ | {"PYTHONPATH": str(found)}
    version = [sys.executable, "-c", "import triton; print(triton.__version__)"]
    assert subprocess.run(version, env=env, capture_output=True, text=True, check=True).stdout == "3.9.0\n"


def test_wrong_directories_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"holds no package triton, no triton-\*\.whl"):
        tritons.found_in([tmp_path], tmp_path)
    (tmp_path / "triton-3.9.0-cp39-cp39-manylinux.whl").touch()
    with pytest.raises(ValueError, match=r"cp39.* is not for this Python"):
        tritons.found_in([tmp_path], tmp_path)
