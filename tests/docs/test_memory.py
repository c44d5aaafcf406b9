"""The arithmetic in docs/MEMORY.md."""

import json
import re
import sys

import pytest
from documents import ROOT
from helpers import environment, run

from sglang_sm120.commands import arguments

TEXT = (ROOT / "docs" / "MEMORY.md").read_text(encoding="utf-8")
GIB = 2**30
NUMBER = r"([\d.]+)"
MODELS = re.findall(
    rf"^\| (V4[\w.-]+) \| (\d+), (\d+), (\d+), (\d+) \| {NUMBER} GiB \| {NUMBER} GiB \| (?:{NUMBER} GiB)?", TEXT, re.M
)
PARTS = re.findall(rf"^\| `(--tp [^|]+)` \| {NUMBER} \| {NUMBER} \|$", TEXT, re.M)
SIMULATED = int(re.search(r"on simulated GPUs of (\d+)\s+GiB", TEXT)[1])
FITS = re.findall(rf"^\| (\d) x \d+ GB[^|]*\| {NUMBER} to {NUMBER} GiB \|", TEXT, re.M)
CACHE = re.findall(
    rf"^\| (\d) x {SIMULATED} GB \| {NUMBER} to {NUMBER} GiB \| [^|]*?(\d+) to (\d+) GiB for KV", TEXT, re.M
)
FLASH = {"experts": 145.1, "draft": 3.2, "rest": 8.0}  # of the table of models, as the document rounds them


def test_the_tables_are_read():
    assert (len(MODELS), len(PARTS), len(FITS)) == (3, 4, 8)


@pytest.mark.parametrize("row", MODELS, ids=[m[0] for m in MODELS])
def test_experts(row):
    experts, hidden, inter, layers = map(int, row[1:5])
    one_layer = experts * 3 * hidden * inter
    assert float(row[5]) == round(one_layer * layers * (1 / 2 + 1 / 16) / GIB, 1)
    assert float(row[6]) == round(one_layer * layers * (1 / 2 + 1 / 32) / GIB, 1)
    if row[7]:
        assert float(row[7]) == pytest.approx(one_layer * (1 / 2 + 1 / 32) / GIB, abs=0.05)


@pytest.mark.parametrize(("flags", "part", "gib"), PARTS)
def test_static_part(flags, part, gib):
    assert float(gib) == pytest.approx(SIMULATED * float(part), abs=0.05)


def test_the_gpus_are_those_of_plan():
    assert arguments.parser().parse_args(["plan", "--model", "x"]).gpu_memory_gib == SIMULATED


@pytest.mark.parametrize(("flags", "part", "gib"), [PARTS[0], PARTS[-1]])
def test_plan_says_the_same(flags, part, gib, model):
    """With the default memory and the installed SGLang, which is the release that the document names."""
    command = [sys.executable, "-m", "sglang_sm120.cli", "plan", "--model", model, "--arch", "sm120", "--json", "--"]
    done = run(*command, *flags.split(), env=environment())
    memory = json.loads(done.stdout)["memory"]
    assert memory["static_gib"] == pytest.approx(float(gib), abs=0.05)
    assert memory["static_gib"] / SIMULATED == pytest.approx(float(part), abs=0.0006)


def test_what_is_left_for_the_cache():
    parts = {flags.removeprefix("--tp "): float(gib) for flags, _, gib in PARTS}
    assert CACHE
    for gpus, lightest, heaviest, least, most in CACHE:
        assert [int(least), int(most)] == [round(parts[gpus] - float(w)) for w in (heaviest, lightest)]


@pytest.mark.parametrize(("gpus", "least", "most"), FITS)
def test_what_fits(gpus, least, most):
    sharded = (FLASH["experts"] + FLASH["draft"]) / int(gpus)
    assert float(most) == pytest.approx(sharded + FLASH["rest"], abs=1)
    if int(gpus) > 1:
        assert float(least) == pytest.approx(sharded + FLASH["rest"] / int(gpus), abs=1)
