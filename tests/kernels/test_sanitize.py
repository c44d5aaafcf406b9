"""What compute-sanitizer prints, read: findings in our kernels are red, torch's copies are not, silence is."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "scripts" / "machine_code" / "sanitize.py"
spec = importlib.util.spec_from_file_location("sanitize", PROGRAM)
assert spec
assert spec.loader
sanitize = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sanitize)

MEMCHECK = """\
========= Invalid __global__ read of size 16 bytes
=========     at gate_up+0x3f0 in gemm.py:100
=========     by thread (3,0,0) in block (7,0,0)
=========     Address 0x7f is out of bounds
=========         Host Frame: cuLaunchKernelEx in libcuda.so.1
"""
RACE = """\
========= Error: Race reported between Write access at down+0x120 in product_bf16.py:10
=========     and Read access at down+0x1b0 in product_bf16.py:12 [16 hazards]
"""
COPIES = """\
========= Uninitialized __global__ memory read of size 1 bytes
=========     at void at::native::vectorized_elementwise_kernel<(int)8, at::native::FillFunctor<int>>(int)+0x90
=========     by thread (0,0,0) in block (0,0,0)
"""


@pytest.mark.parametrize(
    ("text", "mine", "elsewhere"),
    [
        (MEMCHECK * 2, {"gate_up: Invalid __global__ read of size 16 bytes": 2}, 0),
        (RACE, {"down: Race reported between Write access": 1}, 0),
        (COPIES, {}, 1),
        (COPIES + MEMCHECK + COPIES, {"gate_up: Invalid __global__ read of size 16 bytes": 1}, 2),
        ("========= Barrier error detected.\n=========     by thread 3\n", {"unnamed: Barrier error detected.": 1}, 0),
        ("========= COMPUTE-SANITIZER\n3 calls ran for 2 tiles\n========= ERROR SUMMARY: 0 errors\n", {}, 0),
    ],
)
def test_findings(text, mine, elsewhere):
    found, others, _ = sanitize.findings(text, {"gate_up", "down"})
    assert dict(found) == mine
    assert others.total() == elsewhere


def test_reads_that_are_meant_are_explained_for_one_tool_only():
    lines = (sanitize.SOURCES / "fp4_moe" / "device" / "groups.py").read_text().splitlines()
    at = next(n for n, line in enumerate(lines, 1) if "tl.load(entry" in line)
    for tool, line, number in (("initcheck", at, 1), ("memcheck", at, 0), ("initcheck", at - 2, 0)):
        text = f"========= Uninitialized __global__ memory read\n=========     at down+0x90 in /x/groups.py:{line}\n"
        mine, others, explained = sanitize.findings(text, {"down"}, tool)
        assert (mine.total(), others.total(), explained.total()) == (1 - number, 0, number)


def stand_ins(directory, tool_does):
    """The program's command with a stand-in for the sanitizer and one for Python; its receipt is `r`."""
    calls, tool = directory / "python", directory / "compute-sanitizer"
    calls.write_text("#!/bin/sh\necho 'kernels: gate_up down'\necho '3 calls ran for 2 tiles'\n")
    tool.write_text(f"#!/bin/sh\n{tool_does}\n")
    for program in (calls, tool):
        program.chmod(0o755)
    text = f"import sys, runpy; sys.executable = {str(calls)!r}; sys.argv[0] = {str(PROGRAM)!r}; "
    text += "runpy.run_path(sys.argv[0], run_name='__main__')"
    arguments = ["--tools", "memcheck", "--codes", "own", "--sanitizer", str(tool), "--out", str(directory / "r")]
    return [sys.executable, "-c", text, *arguments]


def test_a_run(tmp_path):
    """Exit status and receipt."""
    command = stand_ins(tmp_path, 'cat "$FOUND"\nshift 4\n"$@"')
    for text, status in (
        ("========= ERROR SUMMARY: 0 errors\n", 0), (COPIES + "========= ERROR SUMMARY: 1 error\n", 0),
        (MEMCHECK + "========= ERROR SUMMARY: 1 error\n", 1), ("", 1), ("========= ERROR SUMMARY: 2 errors\n", 1),
    ):  # fmt: skip
        (tmp_path / "found").write_text(text)
        env = os.environ | {"FOUND": str(tmp_path / "found")}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == status, (text, done.stdout, done.stderr)
        assert ("RED" in done.stdout) == bool(status)
        assert (tmp_path / "r").is_file()


def test_a_tool_that_hangs_is_ended_in_time_and_red(tmp_path):
    """With all that it started; the row that was finished before stays in the receipt."""
    command = [*stand_ins(tmp_path, "sleep 100 & echo started; wait"), "--minutes", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    rows = json.loads((tmp_path / "r").read_text())["rows"]
    assert [(row["tool"], row["ok"]) for row in rows] == [(None, True), ("memcheck", False)]
