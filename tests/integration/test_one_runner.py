"""The process behind `tune`: SGLang builds and loads the layer, ours computes it, and it is right."""

import json
import sys

import pytest
from helpers import environment

from scripts.checkpoints import tiny
from scripts.compat import cache
from sglang_sm120.commands.isolated import Isolated
from sglang_sm120.commands.tune import jobs
from sglang_sm120.commands.tune.jobs import Job
from sglang_sm120.commands.tune.requests import LayerRequest, check
from sglang_sm120.moe.runner_tables import Layer

pytestmark = pytest.mark.sglang

CHILD = [sys.executable, "-m", "sglang_sm120.commands.one_runner.child", "--simulated"]


def answers(tmp_path, request, variables):
    """What the process says, until its first check is done or it refuses."""
    process = Isolated(CHILD, variables, tmp_path / "log")
    try:
        found = list(process.ask(request.line(), 250))
        if "done" in found[-1]:
            found += process.ask(json.dumps(check((2,))), 250)
    finally:
        process.kill()
    return found


@pytest.mark.parametrize(
    ("role", "ep", "method"), [("target", 1, "Sm120Nvfp4MoEMethod"), ("draft", 2, "Sm120Mxfp4MoEMethod")]
)
def test_the_layers_of_a_checkpoint_are_built_and_right(tmp_path, role, ep, method):
    model = tiny.write(tmp_path / "model")
    flags, variables = jobs.runner_words(role, "sm120_triton")
    request = LayerRequest(str(model), role, "sm120_triton", 2, ep, "cpu", flags=tuple(flags))
    found = answers(tmp_path, request, environment(**variables))
    assert next(a["method"] for a in found if a.get("done") == "built") == method
    rows = [a["row"] for a in found if "row" in a]
    assert [(row["case"], row["right"], row["repeats"]) for row in rows] == [
        (f"{kind} T=2", True, True) for kind in ("uniform", "shared")
    ]


@pytest.mark.parametrize(("release", "experts"), [("0.5.14", "nvfp4"), ("0.5.17", "mxfp4")])
def test_layers_of_a_shape_are_built_by_older_releases_too(tmp_path, release, experts):
    with jobs.directory(Job(Layer(experts, 8, 512, 128, 2, 2))) as model:
        request = LayerRequest(str(model), "target", "sm120_triton", 2, device="cpu")
        variables = environment(PYTHONPATH=cache.path_of(release), SGLANG_SM120_TARGET_MOE="sm120_triton")
        found = answers(tmp_path, request, variables)
    assert [a["row"]["right"] for a in found if "row" in a] == [True, True], found[-1]


def test_a_runner_without_a_kernel_here_is_refused_in_sglangs_or_our_words(tmp_path):
    model = tiny.write(tmp_path / "model")
    flags = ("--moe-runner-backend", "flashinfer_trtllm_routed")
    request = LayerRequest(str(model), "target", "flashinfer_trtllm_routed", device="cpu", flags=flags)
    *_, last = answers(tmp_path, request, environment())
    assert "its kernels are built for SM100 only" in last["refused"]
