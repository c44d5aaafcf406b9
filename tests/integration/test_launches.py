"""What a launch gets, decided by the installed SGLang on simulated GPUs."""

import pytest
from helpers import EAGLE

from sglang_sm120.moe.runners import DRAFT_FLAG, TARGET_FLAG

pytestmark = pytest.mark.sglang

TP2 = ["--tp", "2"]

NVFP4, TRTLLM = "ModelOptNvFp4FusedMoEMethod", "Mxfp4FlashinferTrtllmMoEMethod"
OURS, RUNNER = "Sm120Mxfp4MoEMethod", "sm120_triton"
GATED = ("Sm120Nvfp4MoEMethod", RUNNER, "deepseek_v4_gate")
CUTLASS, MARLIN = ((NVFP4, runner, "deepseek_v4_gate") for runner in ("flashinfer_cutlass", "marlin"))
DRAFT = (OURS, RUNNER, "mxfp4_nextn")
STOCK = (NVFP4, "flashinfer_trtllm_routed", None)
STOCK_DRAFT = (TRTLLM, "flashinfer_mxfp4", None)
MARLIN_DRAFT = ("Mxfp4MarlinMoEMethod", "marlin", "mxfp4_nextn")
DRAFT_LOAD = "--speculative-draft-load-format"
VARIABLE, TARGET_VARIABLE = "SGLANG_SM120_DRAFT_MOE", "SGLANG_SM120_TARGET_MOE"
# On the release of the environment; docs/COMPAT.md has the others.
STATES = {
    "runner_name": "applied",
    "deepseek_v4_gate": "applied",
    "cutlass_swiglu_limit": "not needed",
    "marlin_routed_scaling": "not needed",
    "draft_format": "applied",
    "mxfp4_nextn": "applied",
    "mxfp4_experts": "applied",
    "weight_updates": "applied",
    "deterministic_attention": "not needed",
}

# A fourth of the small checkpoint's shared expert is narrower than its FP8 block.
WHOLE = {"SGLANG_SHARED_EXPERT_TP1": "1"}

DETERMINISTIC, INVARIANT = "--enable-deterministic-inference", {"SGLANG_SM120_BATCH_INVARIANT": "1"}

SHARDS = [*TP2, *EAGLE, "--load-format", "sharded_state", DRAFT_LOAD, "auto"]

# id, flags, environment, target, draft
SM120 = [
    ("no draft", TP2, {}, GATED, None),
    ("eagle", TP2 + EAGLE, {}, GATED, DRAFT),
    ("marlin target", [*TP2, *EAGLE, TARGET_FLAG, "marlin"], {}, (NVFP4, "marlin", None), DRAFT),
    ("ep 2 of 4", ["--tp", "4", "--ep-size", "2"], WHOLE, GATED, None),
    ("quantization", [*TP2, "--quantization", "fp8"], {}, GATED, None),
    ("ours for NVFP4", [*TP2, TARGET_FLAG, RUNNER], {}, (*GATED[:2], "mxfp4_nextn"), None),
    ("target by variable", TP2 + EAGLE, {TARGET_VARIABLE: "marlin"}, MARLIN, DRAFT),
    ("target's flag first", [*TP2, TARGET_FLAG, "marlin"], {TARGET_VARIABLE: RUNNER}, (NVFP4, "marlin", None), None),
    ("ray without draft", [*TP2, "--use-ray"], {}, CUTLASS, None),
    ("no name, no draft", TP2, {"SGLANG_SM120_DISABLE": "runner_name"}, CUTLASS, None),
    ("draft marlin", [*TP2, *EAGLE, DRAFT_FLAG, "marlin"], {}, GATED, MARLIN_DRAFT),
    ("draft by variable", TP2 + EAGLE, {VARIABLE: "marlin"}, GATED, MARLIN_DRAFT),
    ("flag over variable", [*TP2, *EAGLE, DRAFT_FLAG, RUNNER], {VARIABLE: "marlin"}, GATED, DRAFT),
    ("no chunks", [*TP2, "--chunked-prefill-size", "-3"], {}, GATED, None),
    ("a chain's width", [*TP2, *EAGLE, "--speculative-num-draft-tokens", "-7"], {}, GATED, DRAFT),  # SGLang sets it
    ("no draft step", [*TP2, *EAGLE, "--speculative-num-steps", "0"], {}, GATED, DRAFT),  # SGLang then decodes plainly
    ("shards of another target", [*SHARDS, TARGET_FLAG, "marlin"], {}, (NVFP4, "marlin", None), DRAFT),
    ("draft unlike the target", [*TP2, *EAGLE, "--load-format", "dummy", DRAFT_LOAD, "auto"], {}, GATED, DRAFT),
    ("invariant", TP2 + EAGLE, INVARIANT, GATED, DRAFT),
    ("deterministic", [*TP2, *EAGLE, DETERMINISTIC], INVARIANT, GATED, DRAFT),
    ("deterministic marlin", [*TP2, DETERMINISTIC, TARGET_FLAG, "marlin"], INVARIANT, (NVFP4, "marlin", None), None),
    ("off", TP2 + EAGLE, {"SGLANG_SM120": "0"}, STOCK, STOCK_DRAFT),
    ("not loaded", TP2 + EAGLE, {"SGLANG_PLUGINS": "__none__"}, STOCK, STOCK_DRAFT),
    ("without draft patch", TP2 + EAGLE, {"SGLANG_SM120_DISABLE": "mxfp4_nextn"}, CUTLASS, STOCK_DRAFT),
]  # fmt: skip

# id, flags, environment, what the error must say
STOPPED = [
    ("shards of the target", SHARDS, {}, "--load-format sharded_state writes parameters after they were prepared"),
    ("trtllm", [*TP2, TARGET_FLAG, "flashinfer_trtllm"], {}, f"{TARGET_FLAG} flashinfer_trtllm cannot run"),
    ("narrow shared expert", ["--tp", "4"], {}, "columns at --tp 4, no multiple of its FP8 block 128, so SGLang ref"),
    ("ours unreached", [*TP2, TARGET_FLAG, RUNNER], {"SGLANG_SM120_DISABLE": "mxfp4_nextn"}, "mxfp4_nextn, which"),
    ("cutlass on ep 2", ["--tp", "4", "--ep-size", "2"], {TARGET_VARIABLE: "flashinfer_cutlass"}, "--ep-size 1 or 4"),
    ("bad target", TP2, {TARGET_VARIABLE: "triton"}, "is 'triton'; expected one of auto, sm120_triton, flash"),
    ("triton draft", [*TP2, *EAGLE, DRAFT_FLAG, "triton"], {}, f"{DRAFT_FLAG} triton cannot run"),
    ("without the gate", TP2, {"SGLANG_SM120_DISABLE": "deepseek_v4_gate"}, "SGLANG_SM120_DISABLE"),
    ("ray", [*TP2, *EAGLE, "--use-ray"], {}, "--use-ray"),
    ("dtype", [*TP2, *EAGLE, "--dtype", "float16"], {}, "sm120_triton needs --dtype bfloat16"),
    ("tp 0", ["--tp", "0"], {}, "--tp is 0; expected 1 or more"),
    ("tp 3", ["--tp", "3"], {}, "--tp is 3; expected a divisor of moe_intermediate_size in config.json, which is 256"),
    ("ep 0", [*TP2, "--ep-size", "0"], {}, "--ep-size is 0; expected 1 or more"),
    ("ep 3", [*TP2, "--ep-size", "3"], {}, "--ep-size is 3; expected a divisor of --tp, which is 2"),
    ("ep 16", ["--tp", "16", "--ep-size", "16"], WHOLE, "expected a divisor of n_routed_experts in config.json, which"),
    ("attention", [*TP2, "--dp-size", "3", "--enable-dp-attention"], {}, "--attn-dp-size is 3; expected a divisor of"),
    ("more than a GPU", [*TP2, "--mem-fraction-static", "5"], {}, "--mem-fraction-static is 5.0; expected a part"),
    ("nothing of a GPU", [*TP2, "--mem-fraction-static", "0"], {}, "--mem-fraction-static is 0.0; expected a part"),
    ("no tokens", [*TP2, "--max-total-tokens", "0"], {}, "--max-total-tokens is 0; expected 256 or more"),
    ("no step", [*TP2, *EAGLE, "--speculative-num-steps", "-1"], {}, "--speculative-num-steps is -1; expected 0 or"),
    ("port", [*TP2, "--port", "999999"], {}, "--port is 999999; expected 0 to 65535"),
    ("address", [*TP2, "--nnodes", "2", "--dist-init-addr", "h:99999"], {}, "--dist-init-addr is 'h:99999'; expected"),
    ("algorithm", [*TP2, "--speculative-algorithm", "EAGLEE"], {}, "ForCausalLM (--speculative-algorithm EAGLEE)"),
    ("part of a page", [*TP2, "--chunked-prefill-size", "1000"], {}, "page_size (--chunked-prefill-size 1000)"),
    ("stages", [*TP2, *EAGLE, "--pp-size=2"], {}, "disaggregation-mode=prefill) (--tp, --spec"),
    ("colon", [*TP2, "--served-model-name=a:b"], {}, "Invalid value: 'a:b' (--served-model-name=a:b)"),
    ("workers", [*TP2, "--tokenizer-worker-num", "0"], {}, "Tokenizer worker num must >= 1 (--tokenizer-worker-num 0)"),
    ("offloading", [*TP2, *EAGLE, "--cpu-offload-gb", "8"], {}, "--cpu-offload-gb moves parameters to host memory"),
    ("groups", [*TP2, *EAGLE, "--offload-group-size", "2"], {}, "--offload-group-size moves parameters to host memo"),
    ("shards", [*TP2, *EAGLE, "--load-format", "sharded_state"], {}, "--load-format sharded_state writes parameters"),
    ("remote", [*TP2, *EAGLE, "--load-format", "layered"], {}, "--load-format layered makes new parameters"),
    ("draft's", [*TP2, *EAGLE, DRAFT_LOAD, "presharded"], {}, f"{DRAFT_LOAD} presharded keeps prepared parameters"),
    ("no name", TP2 + EAGLE, {"SGLANG_SM120_DISABLE": "runner_name"}, "SGLANG_SM120_DISABLE leaves out runner_name"),
    ("other quantization", [*TP2, "--quantization", "modelopt_fp4"], {}, "--quantization modelopt_fp4 is not"),
    ("determinism refused", [*TP2, DETERMINISTIC], {}, "; set SGLANG_SM120_BATCH_INVARIANT=1 to have"),
    ("bad setting", TP2, {"SGLANG_SM120_ACTIVATION": "fp16"}, "SGLANG_SM120_ACTIVATION is 'fp16'"),
    ("resolved too early", TP2, {}, "load_plugins()"),
]  # fmt: skip


@pytest.fixture(scope="module")
def answers(probe, checkpoints):
    rows = [(i, f, e, False) for i, f, e, *_ in SM120] + [
        (i, f, e, i == "resolved too early") for i, f, e, _ in STOPPED
    ]
    launches = [{"model": str(checkpoints["hybrid"]), "flags": f, "env": e, "before_plugins": b} for _, f, e, b in rows]
    return dict(zip([r[0] for r in rows], probe("sm120", launches), strict=True))


def part(answer, role):
    found = answer[role]
    return found and (found["method"], found["runner"], found["changed_by"])


@pytest.mark.parametrize(("name", "target", "draft"), [(i, t, d) for i, _, _, t, d in SM120], ids=[r[0] for r in SM120])
def test_gets(answers, name, target, draft):
    answer = answers[name]
    assert answer["errors"] == []
    assert part(answer, "target") == target
    assert part(answer, "draft") == draft


@pytest.mark.parametrize(("name", "says"), [(i, s) for i, _, _, s in STOPPED], ids=[r[0] for r in STOPPED])
def test_stops_and_says(answers, name, says):
    (error,) = answers[name]["errors"]
    assert says in error
    assert "\n" not in error


@pytest.mark.parametrize("name", ["invariant", "deterministic"])
def test_batch_invariant_layers_are_shown(answers, name):
    assert [answers[name][role]["batch_invariant"] for role in ("target", "draft")] == [True, True]
    assert answers["eagle"]["target"]["batch_invariant"] is False


def test_what_does_not_keep_bits_is_named(answers):
    assert answers["invariant"]["warnings"] == []
    (attention,) = answers["deterministic"]["warnings"]
    assert "SGLang itself refuses it for dsv4 attention" in attention
    assert states(answers["deterministic"]["patches"])["deterministic_attention"] == "applied"
    assert answers["deterministic marlin"]["wants_invariance"] is True


def states(patches):
    return {p["name"]: p["status"] for p in patches}


def test_every_patch_has_a_state_and_a_reason(answers):
    for name in ("eagle", "off"):
        assert all(p["reason"] for p in answers[name]["patches"])
    assert states(answers["eagle"]["patches"]) == STATES
    assert states(answers["off"]["patches"]) == dict.fromkeys(STATES, "not applicable")


@pytest.mark.parametrize("arch", ["none", "sm90", "sm100"])
def test_elsewhere_nothing_changes(probe, arch):
    (answer,) = probe(arch, [{}], identity=True)
    assert answer["changed"] == []
    assert set(answer["states"].values()) == {"not applicable"}


def test_on_sm121_the_same_targets_change(probe):
    """The identity check can fail."""
    (answer,) = probe("sm121", [{}], identity=True)
    assert answer["states"] == STATES
    changed = answer["changed"]
    assert {"providers", "hooks", "choices", "names"} < set(changed)
    assert sum("get_quant_method" in c for c in changed) == 2
