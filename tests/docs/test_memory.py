"""The arithmetic in docs/MEMORY.md."""

import json
import re
import sys

import pytest
from documents import ROOT
from helpers import environment, run

from sglang_sm120.checkpoint import format, memory
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
FLASH = memory.Weights(*(round(gib * GIB) for gib in (145.1, 3.2, 8.0)))  # of the table of models, as it rounds them


def test_the_tables_are_read():
    assert (len(MODELS), len(PARTS), len(FITS)) == (3, 4, 9)


@pytest.mark.parametrize("row", MODELS, ids=[m[0] for m in MODELS])
def test_experts(row):
    """By the tensors that a checkpoint of these sizes has."""
    experts, hidden, inter, layers = map(int, row[1:5])
    shape = format.Shape(hidden=hidden, intermediate=inter, experts=experts)

    def one_layer(kind):
        matrices = format.expert_matrices(shape).values()
        sizes = [format.nbytes(*entry) for matrix in matrices for entry in format.matrix(kind, *matrix).values()]
        return experts * sum(sizes) / GIB

    assert float(row[5]) == round(one_layer("hybrid-nvfp4") * layers, 1)
    assert float(row[6]) == round(one_layer("mxfp4") * layers, 1)
    if row[7]:
        assert float(row[7]) == pytest.approx(one_layer("mxfp4"), abs=0.05)


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
    """By `plan`'s own sum of a rank's weights."""
    lightest, heaviest = FLASH.per_gpu(tp=int(gpus), pp=1, draft=True)
    assert float(most) == pytest.approx(heaviest / GIB, abs=1)
    if int(gpus) > 1:
        assert float(least) == pytest.approx(lightest / GIB, abs=1)


def test_a_pruned_model_is_the_same_arithmetic():
    few, all_of, gib = map(
        float, re.search(rf"pruned to {NUMBER} of {NUMBER} experts .* about {NUMBER} GiB", TEXT).groups()
    )
    experts = (FLASH.experts + FLASH.draft_experts) / GIB
    assert gib == round(experts * few / all_of + FLASH.rest / GIB)
