"""`Sm120Mxfp4MoEMethod`: updates of a part, and what it refuses."""

import json
import sys

import pytest
from helpers import CHILDREN, ROOT, environment, run

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def outcomes(checkpoints):
    env = environment(PYTHONPATH=str(ROOT))
    done = run(sys.executable, CHILDREN / "method_checks.py", checkpoints["hybrid"], env=env)
    assert done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["twice prepared", "one gate and one down matrix updated"])
def test_right(outcomes, name):
    assert outcomes[name] <= 3e-3


def test_an_int64_id_far_from_every_expert_joins_none(outcomes):
    """Its lower half is the number of an expert."""
    errors = outcomes["int64 ids, one of them far from every expert"]
    assert len(errors) == 3
    assert max(errors.values()) <= 3e-3


def test_kernels_are_compiled_when_weights_have_been_loaded(outcomes):
    """On a GPU, once, for a chunk of prefill beside 256 requests that verify 2 tokens each."""
    on_cpu, on_gpu = outcomes["compiled before the first forward"]
    assert on_cpu == []
    assert on_gpu == [[4, 2, 8192 + 256 * 2, {"activation": "bf16", "swiglu_limit": 10.0}]]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("before it is prepared again", "used before process_weights_after_loading"),
        ("range that graphs were not captured for", "restart the server"),
        ("moved weights", "were moved after sm120_triton had prepared them"),
        ("update of moved weights", "were moved after"),
        ("missing matrix", "did not deliver experts.3.w3.weight, experts.3.w3.weight_scale_inv"),
        ("no loader at all", "w13_weight_scale_inv of local expert 0"),
        ("activation", "activation is 'gelu'; sm120_triton computes 'silu' only"),
        ("gemm1_alpha", "gemm1_alpha is 1.7"),
        ("gemm1_clamp_limit", "gemm1_clamp_limit is 7.0"),
        ("apply_router_weight_on_input", "apply_router_weight_on_input is True"),
        ("width", "intermediate size of a rank is 48; sm120_triton needs a multiple of 32"),
        ("hidden", "hidden_size of a rank is 80"),
        ("dtype", "--dtype bfloat16"),
    ],
)
def test_refused(outcomes, name, says):
    assert says in outcomes[name]
    assert outcomes[name].startswith("model.decoder.mlp.experts: ")
