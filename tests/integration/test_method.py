"""`Sm120Mxfp4MoEMethod` and `Sm120Nvfp4MoEMethod`: updates, and what they refuse. `nvfp4 cast` runs as MXFP4."""

import json
import sys

import pytest
from helpers import CHILDREN, ROOT, environment, run

pytestmark = pytest.mark.sglang

MXFP4 = ("w13_weight", "w13_weight_scale_inv", "w2_weight", "w2_weight_scale_inv")
NVFP4 = ("w13_weight", "w13_weight_scale", "w13_weight_scale_2", "w2_weight", "w2_weight_scale", "w2_weight_scale_2")
PARAMETERS = {"mxfp4": MXFP4, "nvfp4": NVFP4, "nvfp4 cast": NVFP4}
DRAFT, TARGET = "model.decoder.mlp.experts: ", "model.layers.0.mlp.experts: "
PREFIX = {"mxfp4": DRAFT, "nvfp4": TARGET, "nvfp4 cast": TARGET}
KINDS = {name: [p.removeprefix("w2_") for p in parameters if "w2" in p] for name, parameters in PARAMETERS.items()}
FORMATS = tuple(PREFIX)
FROZEN = {
    "mxfp4": "CUDA graphs were captured with the kernel for weights with scales inside",
    "nvfp4 cast": "the new weights are no lossless cast of MXFP4, and CUDA graphs were captured with the kernel for",
}


@pytest.fixture(scope="module")
def everything(checkpoints):
    """format -> check -> outcome."""
    env = environment(PYTHONPATH=str(ROOT))
    done = run(sys.executable, CHILDREN / "method_checks.py", checkpoints["hybrid"], env=env)
    assert done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(params=FORMATS)
def form(request):
    return request.param


@pytest.fixture
def outcomes(everything, form):
    return everything[form]


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
    options = {"activation": "bf16", "swiglu_limit": 10.0, "batch_invariant": False}
    assert on_gpu == [[4, 2, 8192 + 256 * 2, options]]


def test_a_batch_invariant_layer_compiles_and_runs_so(outcomes):
    assert outcomes["batch-invariant"] == [True, True]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("before it is prepared again", "used before process_weights_after_loading"),
        ("within a session", "a weight update of this layer has begun and not ended"),
        ("saved", "in the kernel's layout, which no other server can read; save_sharded_model"),
        ("broken, used", "in no known layout, because repacking them ended in MemoryError: out of memory; load the"),
        ("broken, prepared again", "Not loaded since: experts.0.w1.{0}, experts.0.w1.{1}"),
        ("broken, saved", "in no known layout, which no other server can read"),
        ("broken, loaded in part", "Not loaded since: experts.3.w2.{0}, experts.3.w2.{1}"),
        ("broken on the way back, used", "in no known layout"),
        ("missing matrix", "did not deliver experts.3.w3.{0}, experts.3.w3.{1}"),
        ("no loader at all", "w13_{1} of local expert 0"),
        ("activation", "activation is 'gelu'; sm120_triton computes 'silu' only"),
        ("gemm1_alpha", "gemm1_alpha is 1.7"),
        ("gemm1_clamp_limit", "gemm1_clamp_limit is 7.0"),
        ("apply_router_weight_on_input", "apply_router_weight_on_input is True"),
        ("width", "intermediate size of a rank is 48; sm120_triton needs a multiple of 32"),
        ("hidden", "hidden_size of a rank is 80"),
        ("dtype", "--dtype bfloat16"),
    ],
)
def test_refused(outcomes, form, name, says):
    assert says.format(*KINDS[form]) in outcomes[name]
    assert outcomes[name].startswith(PREFIX[form])


@pytest.mark.parametrize(("form", "name"), [(f, n) for f, names in PARAMETERS.items() for n in names])
def test_moved_parameters_are_refused(everything, form, name):
    for action in ("moved", "update of moved"):
        says = f"{PREFIX[form]}{name} was moved after sm120_triton had prepared it"
        assert everything[form][f"{action} {name}"].startswith(says)


@pytest.mark.parametrize("name", ["range that graphs were not captured for", "part of the former weights"])
def test_graphs_keep_the_kernel_that_they_were_captured_with(everything, name):
    """NVFP4's own kernel takes casts as well."""
    for form, says in FROZEN.items():
        assert says in everything[form][name]
        assert "restart the server on the new checkpoint" in everything[form][name]
        assert everything[form][name].startswith(PREFIX[form])
    assert everything["nvfp4"][name] == "not refused"


def test_an_exception_within_the_repack_is_not_hidden(outcomes):
    assert outcomes["half-way"] == outcomes["half-way back"] == "out of memory"


@pytest.mark.parametrize("form", FROZEN)
def test_a_refusal_moves_no_byte(everything, form):
    assert everything[form]["bytes that a refusal moved"] == []


def test_only_the_dummy_of_draft_and_target_is_filled(outcomes, form):
    filled, left = ("draft", "target") if form == "mxfp4" else ("target", "draft")
    assert outcomes[f"only the {filled} is dummy"] == "not refused"
    says = f"w13_{KINDS[form][1]} of local expert 0 has values that were never loaded"
    assert says in outcomes[f"only the {left} is dummy"]


def test_an_update_needs_little_memory(outcomes):
    """The largest experts published, 7168 x 3072; measured on the two that stand for any number."""
    peak, layer = outcomes["peak bytes of an update"]
    assert layer > 64 << 20
    assert 0 < peak < 128 << 20
