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
# The target's first layer; NVFP4 that is a cast of MXFP4 runs as MXFP4 as long as graphs know no better.
TARGETS = {f"{run} target{' cast' * cast}": (run, cast) for run in RUNS for cast in (False, True)}
ASKED = list(RUNS) + list(TARGETS)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """run -> what each rank said of each step."""
    root = tmp_path_factory.mktemp("models")
    asked = {}
    for cast in (False, True):
        written = (tiny.write(root / f"{s}{cast}", replace(tiny.SHAPE, seed=s, cast=cast)) for s in (0, 1))
        files = dict(zip(("first", "second"), map(str, written), strict=True))
        if not cast:
            asked = {name: files | {"tp": tp, "flags": flags} for name, (tp, flags) in RUNS.items()}
        for name, (of, is_cast) in TARGETS.items():
            if is_cast == cast:
                asked[name] = files | {"tp": RUNS[of][0], "flags": RUNS[of][1], "role": "target"}
    done = run(sys.executable, PROBE, env=environment(), input=json.dumps(asked), timeout=500)
    assert done.stdout, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ASKED)
def test_graphs_read_what_was_written_last(answers, name, step):
    assert len(answers[name]) == RUNS[TARGETS.get(name, (name,))[0]][0]
    for rank in answers[name]:
        assert "error" not in rank, rank["error"]
        assert rank[step] == {"refused": None, "answer": rank[step]["answer"], "different": 0, "moved": []}
        assert rank[step]["answer"][0] is True


@pytest.mark.parametrize("name", [name for name in ASKED if name.startswith("released")])
def test_weights_that_were_released(answers, name):
    assert answers[name][0]["resumed"]["refused"] is None
    assert answers[name][0]["resumed"]["different"] == 0


def test_every_rank_refuses_scales_that_graphs_were_not_captured_for(answers):
    for rank in answers["TP2"]:
        wanted = "CUDA graphs were captured with the kernel for weights with scales inside"
        assert wanted in rank["out of range"]["refused"]


def test_every_rank_refuses_what_is_no_cast_after_a_cast_was_captured(answers):
    for rank in answers["TP2 target cast"]:
        assert "the new weights are no lossless cast of MXFP4, and CUDA graphs" in rank["out of range"]["refused"]
    for rank in answers["TP2 target"]:
        assert rank["out of range"]["refused"] is None


@pytest.mark.parametrize("name", ["dummy", "redundant"])
def test_where_scales_are_not_known_first_any_are_taken(answers, name):
    assert [rank["out of range"]["refused"] for rank in answers[name]] == [None] * RUNS[name][0]
