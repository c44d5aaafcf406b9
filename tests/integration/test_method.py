"""`Sm120Mxfp4MoEMethod`: updates of a part, and what it refuses."""

import json
import sys

import pytest
from helpers import CHILDREN, ROOT, environment, run

pytestmark = pytest.mark.sglang

PARAMETERS = ("w13_weight", "w13_weight_scale_inv", "w2_weight", "w2_weight_scale_inv")


@pytest.fixture(scope="module")
def outcomes(checkpoints):
    env = environment(PYTHONPATH=str(ROOT))
    done = run(sys.executable, CHILDREN / "method_checks.py", checkpoints["hybrid"], env=env)
    assert done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout)


RIGHT = [
    "twice prepared",
    "one gate and one down matrix updated",
    "former weights after a refusal",
    "dummy values are finite",
    "dummy, then real",
    "dummy, then scales out of the fast range",
    "real under a dummy load format",
    "session without writes",
    "session with direct writes",
    "session with half a load",
    "broken, loaded wholly",
    "broken on the way back, loaded wholly",
    "other range before any forward",
    "other range without graphs",
    "an expert copied over another",
]


@pytest.mark.parametrize("name", RIGHT)
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
        ("part of the former weights", "CUDA graphs were captured with the kernel for weights with scales inside"),
        *((f"moved {name}", f"{name} was moved after sm120_triton had prepared it") for name in PARAMETERS),
        *((f"update of moved {name}", f"{name} was moved after") for name in PARAMETERS),
        ("only the target is dummy", "w13_weight_scale_inv of local expert 0 has values that were never loaded"),
        ("within a session", "a weight update of this layer has begun and not ended"),
        ("saved", "in the kernel's layout, which no other server can read; save_sharded_model"),
        ("broken, used", "in no known layout, because repacking them ended in MemoryError: out of memory; load the"),
        ("broken, prepared again", "Not loaded since: experts.0.w1.weight, experts.0.w1.weight_scale_inv"),
        ("broken, saved", "in no known layout, which no other server can read"),
        ("broken, loaded in part", "Not loaded since: experts.3.w2.weight, experts.3.w2.weight_scale_inv"),
        ("broken on the way back, used", "in no known layout"),
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


def test_an_exception_within_the_repack_is_not_hidden(outcomes):
    assert outcomes["half-way"] == outcomes["half-way back"] == "out of memory"


def test_a_refusal_moves_no_byte(outcomes):
    assert outcomes["bytes that a refusal moved"] == []


def test_a_dummy_draft_beside_a_real_target_is_filled(outcomes):
    assert outcomes["only the draft is dummy"] is True


def test_an_update_needs_little_memory(outcomes):
    """The largest experts published, 7168 x 3072; measured on the two that stand for any number."""
    peak, layer = outcomes["peak bytes of an update"]
    assert layer > 64 << 20
    assert 0 < peak < 128 << 20
