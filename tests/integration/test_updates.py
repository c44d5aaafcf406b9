"""Weights that are written while two tensor-parallel ranks run, through SGLang's own updaters over gloo."""

import json
import sys
from dataclasses import replace

import pytest
from helpers import CHILDREN, environment, run

from scripts.checkpoints import tiny

pytestmark = pytest.mark.sglang

PROBE = CHILDREN / "update_probe.py"
STEPS = ["disk", "disk again", "tensor", "bucket", "direct", "custom", "pieces", "distributed", "half"]
STEPS += ["whole after half", "ipc", "repaired"]
RUNS = {
    "TP2": (2, []),
    "dummy": (2, ["--load-format", "dummy"]),
    "released": (1, ["--enable-memory-saver"]),
    "redundant": (1, ["--ep-num-redundant-experts", "8"]),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """run -> what each rank said of each step."""
    root = tmp_path_factory.mktemp("models")
    first, second = (str(tiny.write(root / str(seed), replace(tiny.SHAPE, seed=seed))) for seed in (0, 1))
    asked = {name: {"first": first, "second": second, "tp": tp, "flags": f} for name, (tp, f) in RUNS.items()}
    done = run(sys.executable, PROBE, env=environment(), input=json.dumps(asked), timeout=500)
    assert done.stdout, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", RUNS)
def test_graphs_read_what_was_written_last(answers, name, step):
    assert len(answers[name]) == RUNS[name][0]
    for rank in answers[name]:
        assert "error" not in rank, rank["error"]
        assert rank[step] == {"refused": None, "answer": rank[step]["answer"], "different": 0, "moved": []}
        assert rank[step]["answer"][0] is True


def test_weights_that_were_released(answers):
    assert answers["released"][0]["resumed"]["refused"] is None
    assert answers["released"][0]["resumed"]["different"] == 0


def test_every_rank_refuses_scales_that_graphs_were_not_captured_for(answers):
    for rank in answers["TP2"]:
        wanted = "CUDA graphs were captured with the kernel for weights with scales inside"
        assert wanted in rank["out of range"]["refused"]


@pytest.mark.parametrize("name", ["dummy", "redundant"])
def test_where_scales_are_not_known_first_any_are_taken(answers, name):
    assert [rank["out of range"]["refused"] for rank in answers[name]] == [None] * RUNS[name][0]
