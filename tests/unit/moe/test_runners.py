"""The decisions: a table of launches, and that every refusal can be acted upon."""

from dataclasses import replace

import pytest

from sglang_sm120.moe import known_kernels
from sglang_sm120.moe.launch import Launch
from sglang_sm120.moe.refusals import RouteError
from sglang_sm120.moe.runners import route_draft, route_target
from sglang_sm120.settings import RUNNER

HYBRID = Launch("hybrid-nvfp4", 4096, 2048, tp=2, speculative="EAGLE")
NATIVE = replace(HYBRID, kind="mxfp4")
V41 = Launch("mxfp4", 5120, 2304, tp=4, speculative="DSPARK")
V41_HYBRID = replace(V41, kind="hybrid-nvfp4")
PRO = Launch("mxfp4", 7168, 3072, tp=16)
FP8 = replace(HYBRID, kind="fp8")


@pytest.mark.parametrize(
    ("launch", "runner"),
    [
        (HYBRID, RUNNER),
        (replace(HYBRID, tp=4, ep=4), RUNNER),
        (replace(HYBRID, tp=4, ep=2), RUNNER),
        (replace(HYBRID, quantization="fp8"), RUNNER),
        (replace(HYBRID, takes_names=False), RUNNER),
        (replace(HYBRID, target_runner=RUNNER, tp=4, ep=2), None),
        (replace(HYBRID, target_default=RUNNER), RUNNER),
        (replace(HYBRID, target_default="marlin", tp=4, ep=2), "marlin"),
        (replace(HYBRID, target_default="flashinfer_cutlass"), "flashinfer_cutlass"),
        (replace(HYBRID, target_default=RUNNER, target_runner="marlin"), None),  # the flag wins
        (replace(HYBRID, unreached="nobody does it"), "flashinfer_cutlass"),
        (replace(HYBRID, unreached="nobody does it", tp=4, ep=2), "marlin"),
        (replace(HYBRID, unreached="nobody does it", quantization="fp8"), "marlin"),
        (replace(HYBRID, all_to_all="flashinfer"), "flashinfer_cutlass"),
        (replace(HYBRID, all_to_all="none", draft_all_to_all="flashinfer"), RUNNER),
        (replace(HYBRID, target_runner="flashinfer_cutlass"), None),
        (replace(HYBRID, target_runner="marlin", ep=2, tp=4), None),
        (replace(HYBRID, target_runner="lora_marlin"), None),
        (NATIVE, None),
        (replace(NATIVE, target_default=RUNNER), RUNNER),
        (replace(NATIVE, target_default=RUNNER, takes_names=False), RUNNER),
        (replace(NATIVE, target_default="marlin", target_runner="flashinfer_mxfp4"), None),
        (replace(NATIVE, kind="fp8", target_default=RUNNER), None),  # for FP4 experts, as the draft's
        (replace(NATIVE, target_runner="deep_gemm"), None),
        (replace(NATIVE, target_runner=RUNNER), None),
        (replace(V41_HYBRID, tp=8), RUNNER),
        (replace(V41_HYBRID, tp=8, target_runner=RUNNER), None),
        (replace(V41_HYBRID, target_runner="flashinfer_cutlass"), None),  # 576 = 9 x 64
        (replace(V41_HYBRID, target_runner="marlin"), None),
        (replace(V41_HYBRID, tp=8, ep=8, target_runner="flashinfer_cutlass"), None),
        (replace(V41_HYBRID, tp=8, moe_dp=2, target_default="marlin"), "marlin"),  # 576
        (replace(HYBRID, input_scales=False), RUNNER),
        (replace(HYBRID, input_scales=False, target_runner="marlin"), None),
        (replace(HYBRID, input_scales=False, unreached="nobody does it"), "marlin"),
        (replace(HYBRID, converted_scales="U8"), RUNNER),
        (replace(NATIVE, converted_scales="U8"), RUNNER),
        (replace(NATIVE, converted_scales="U8", target_runner=RUNNER), None),
        (replace(NATIVE, deep_gemm_fp4=False), None),
        (V41, RUNNER),  # 576 columns a rank
        (replace(V41, tp=8), RUNNER),  # 288
        (replace(V41, tp=8, ep=8), None),  # whole experts: 2304 = 18 x 128
        (replace(V41, moe_dp=2), None),  # 1152 = 9 x 128
        (replace(V41, moe_dp=2, target_runner="flashinfer_mxfp4"), None),
        (replace(V41, all_to_all="deepep"), None),
        (PRO, RUNNER),  # 192
        (replace(PRO, tp=8), None),  # 384
        (replace(HYBRID, kind="other"), None),
    ],
)
def test_target(launch, runner):
    assert route_target(launch).runner == runner


@pytest.mark.parametrize(
    ("launch", "runner"),
    [
        (HYBRID, RUNNER),
        (replace(HYBRID, target_runner="marlin"), RUNNER),
        (replace(HYBRID, draft_runner="auto"), RUNNER),
        (replace(HYBRID, draft_runner="marlin"), "marlin"),
        (replace(HYBRID, draft_runner="flashinfer_mxfp4"), "flashinfer_mxfp4"),
        (replace(HYBRID, draft_default="marlin"), "marlin"),
        (replace(HYBRID, draft_default="marlin", draft_runner=RUNNER), RUNNER),  # the flag wins
        (NATIVE, None),
        (replace(NATIVE, draft_runner=RUNNER), None),
        (replace(NATIVE, draft_kind="mxfp4"), None),
        (replace(NATIVE, draft_converted_scales="I8"), RUNNER),
        (replace(HYBRID, draft_converted_scales="U8"), RUNNER),
        (FP8, None),
        (replace(FP8, draft_kind="mxfp4"), RUNNER),
        (replace(FP8, draft_kind="mxfp4", speculative="DSPARK"), RUNNER),
        (replace(FP8, draft_kind="mxfp4", takes_names=False, cutlass_mxfp4=False), RUNNER),
        (replace(FP8, draft_kind="mxfp4", draft_runner="marlin"), "marlin"),
        (replace(FP8, draft_kind="fp8"), None),
        (replace(NATIVE, draft_kind="fp8"), "triton"),
        (replace(HYBRID, draft_kind="fp8"), "triton"),
    ],
)
def test_draft(launch, runner):
    assert route_draft(launch).runner == runner


@pytest.mark.parametrize("runner", sorted(known_kernels.refused("nvfp4")))
def test_a_refused_nvfp4_target_names_flag_value_and_what_works(runner):
    with pytest.raises(RouteError) as caught:
        route_target(replace(HYBRID, target_runner=runner))
    said = str(caught.value)
    assert f"--moe-runner-backend {runner}" in said
    assert "sm120_triton, flashinfer_cutlass, marlin" in said


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"target_default": "flashinfer_mxfp4"}, "SGLANG_SM120_TARGET_MOE flashinfer_mxfp4 cannot run here"),
        ({"target_default": "flashinfer_cutlass", "tp": 4, "ep": 2}, "TARGET_MOE flashinfer_cutlass.*--ep-size 1 or 4"),
        (
            {"target_runner": "flashinfer_cutlass", "tp": 4, "ep": 2},
            "--moe-runner-backend.*These can: sm120_triton, mar",
        ),
        ({"target_runner": "flashinfer_cutlass", "quantization": "fp8"}, "--quantization fp8"),
        (
            {"target_runner": RUNNER, "unreached": "patch x is out"},
            "patch x is out.*These can: flashinfer_cutlass, mar",
        ),
        ({"target_runner": RUNNER, "all_to_all": "deepep"}, "--moe-a2a-backend deepep"),
        ({"all_to_all": "deepep"}, "flashinfer_cutlass does not read; leave --moe-a2a-backend out, or give flashinfer"),
        ({"target_runner": "marlin", "all_to_all": "flashinfer"}, "which marlin does not.*These can: flashinfer_cutl"),
        ({"target_runner": "triton", "takes_names": False}, "These can: flashinfer_cutlass, marlin;"),
        (
            {"target_runner": "flashinfer_cutlass", "moe_intermediate_size": 2304, "tp": 8},
            r"multiples of 64 columns of an expert, and a rank has 288 \(--ep-size 8 leaves experts whole\). These",
        ),
        ({"target_runner": "marlin", "moe_intermediate_size": 1536, "tp": 16}, "a rank has 96 .--ep-size 16 leaves"),
        ({"target_default": "flashinfer_cutlass", "moe_intermediate_size": 2080, "tp": 1}, "rank has 2080. These can"),
        (
            {"unreached": "nobody", "moe_intermediate_size": 2304, "tp": 8},
            "no runner can run.*Marlin neither: it needs",
        ),
        (
            {"target_runner": "flashinfer_cutlass", "input_scales": False},
            "no input_scale .*These can: sm120_triton, mar",
        ),
        ({"target_runner": "marlin", "converted_scales": "U8"}, "stores scales as U8.*These can: sm120_triton; or"),
    ],
)
def test_an_nvfp4_target_that_a_launch_keeps_from_running(facts, says):
    with pytest.raises(RouteError, match=says):
        route_target(replace(HYBRID, **facts))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"target_runner": "deep_gemm", "deep_gemm_fp4": False}, "--moe-runner-backend deep_gemm cannot run here"),
        ({"target_runner": "triton"}, "These can: flashinfer_mxfp4, marlin, sm120_triton, deep_gemm;"),
        ({"target_runner": "triton", "deep_gemm_fp4": False}, "These can: flashinfer_mxfp4, marlin, sm120_triton;"),
        ({"target_runner": "flashinfer_mxfp4", "converted_scales": "U8"}, "scales as U8.*These can: sm120_triton;"),
        ({"target_default": "marlin", "converted_scales": "I8"}, "SGLANG_SM120_TARGET_MOE marlin.*scales as I8"),
    ],
)
def test_a_native_target_that_a_launch_keeps_from_running(facts, says):
    with pytest.raises(RouteError, match=says):
        route_target(replace(NATIVE, **facts))


@pytest.mark.parametrize(
    ("launch", "says"),
    [
        (
            replace(HYBRID, draft_runner="marlin", draft_converted_scales="U8"),
            "moe-runner-backend marlin.*scales as U8",
        ),
        (replace(NATIVE, draft_runner="flashinfer_mxfp4", draft_converted_scales="U8"), "These can: sm120_triton;"),
        (
            replace(NATIVE, speculative="DSPARK", draft_kind="fp8"),
            "the DSpark draft's experts are FP8 and the target's mxf",
        ),
        (replace(FP8, draft_kind="mxfp4", draft_runner="triton"), "--speculative-moe-runner-backend triton cannot run"),
    ],
)
def test_a_draft_that_a_launch_keeps_from_running(launch, says):
    with pytest.raises(RouteError, match=says):
        route_draft(launch)


def test_the_variable_of_a_native_target_is_refused_by_its_name():
    with pytest.raises(RouteError, match=r"SGLANG_SM120_TARGET_MOE flashinfer_cutlass.*another format"):
        route_target(replace(NATIVE, target_default="flashinfer_cutlass"))


@pytest.mark.parametrize("kind", ["hybrid-nvfp4", "mxfp4"])
@pytest.mark.parametrize("runner", sorted(known_kernels.refused("mxfp4")))
def test_a_refused_draft_names_its_own_flag(kind, runner):
    with pytest.raises(RouteError) as caught:
        route_draft(replace(HYBRID, kind=kind, draft_runner=runner))
    said = str(caught.value)
    assert f"--speculative-moe-runner-backend {runner}" in said
    assert f"flashinfer_mxfp4, marlin, {RUNNER}" in said


def test_a_refused_default_names_the_variable():
    with pytest.raises(RouteError, match=r"SGLANG_SM120_DRAFT_MOE flashinfer_mxfp4.*multiples of 128"):
        route_draft(replace(HYBRID, moe_intermediate_size=2304, tp=8, draft_default="flashinfer_mxfp4"))


@pytest.mark.parametrize("runner", sorted(known_kernels.refused("mxfp4")))
def test_native_experts_are_never_read_as_another_format(runner):
    with pytest.raises(RouteError, match=f"--moe-runner-backend {runner}"):
        route_target(replace(NATIVE, target_runner=runner))


def test_flashinfer_asked_for_a_shape_it_refuses():
    with pytest.raises(RouteError, match=r"multiples of 128.*intermediate size 576"):
        route_target(replace(V41, target_runner="flashinfer_mxfp4"))


@pytest.mark.parametrize(
    ("target", "draft", "flag", "runner"),
    [
        ("hybrid-nvfp4", "fp8", None, "triton"),
        ("mxfp4", "fp8", None, "triton"),
        ("hybrid-nvfp4", "fp8", "deep_gemm", None),
        ("fp8", "mxfp4", None, RUNNER),
        ("fp8", "mxfp4", "marlin", "marlin"),
        ("mxfp4", "hybrid-nvfp4", None, RUNNER),
        ("hybrid-nvfp4", "mxfp4", None, RUNNER),
        ("fp8", "fp8", None, None),
    ],
)
def test_a_draft_of_its_own_is_routed_by_its_own_format(target, draft, flag, runner):
    launch = replace(HYBRID, kind=target, draft_kind=draft, draft_runner=flag)
    assert route_draft(launch).runner == runner


def test_a_quantization_that_the_checkpoint_is_not():
    with pytest.raises(RouteError, match="--quantization modelopt_fp4 is not what this checkpoint is"):
        route_target(replace(HYBRID, quantization="modelopt_fp4"))


def test_a_draft_runner_that_dspark_would_ignore():
    launch = replace(NATIVE, speculative="DSPARK", draft_runner="deep_gemm")
    with pytest.raises(RouteError, match=r"--speculative-moe-runner-backend deep_gemm.*DSpark itself"):
        route_draft(launch)


def test_a_native_target_of_ours_behind_an_all_to_all():
    for asked in ({"target_runner": RUNNER}, {"target_default": RUNNER}):
        with pytest.raises(RouteError, match=r"sm120_triton cannot.*--moe-a2a-backend deepep.*leave that flag out"):
            route_target(replace(NATIVE, all_to_all="deepep", **asked))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"all_to_all": "flashinfer"}, "--moe-a2a-backend flashinfer.*add --speculative-moe-a2a-backend none"),
        ({"draft_all_to_all": "deepep"}, "--speculative-moe-a2a-backend deepep.*add --speculative-moe-a2a-backend no"),
        ({"all_to_all": "mooncake", "draft_runner": RUNNER, "kind": "mxfp4"}, "--speculative-moe-runner-backend sm120"),
        ({"all_to_all": "flashinfer", "draft_default": RUNNER}, "SGLANG_SM120_DRAFT_MOE sm120_triton cannot run"),
        ({"all_to_all": "flashinfer", "speculative": "DSPARK"}, "leave that flag out .DSpark's draft follows it"),
        (
            {"all_to_all": "flashinfer", "draft_all_to_all": "none", "speculative": "DSPARK"},
            "--moe-a2a-backend flashinfer",
        ),
    ],
)
def test_a_draft_of_ours_behind_an_all_to_all(facts, says):
    with pytest.raises(RouteError, match=says):
        route_draft(replace(HYBRID, **facts))


@pytest.mark.parametrize(
    ("facts", "runner"),
    [
        ({"all_to_all": "flashinfer", "draft_all_to_all": "none"}, RUNNER),
        ({"all_to_all": "flashinfer", "draft_runner": "marlin"}, "marlin"),
        ({"all_to_all": "deepep", "kind": "mxfp4"}, None),
    ],
)
def test_other_drafts_stay_as_they_are(facts, runner):
    assert route_draft(replace(HYBRID, **facts)).runner == runner


@pytest.mark.parametrize("kind", ["hybrid-nvfp4", "mxfp4"])
def test_a_quantization_that_the_draft_is_not(kind):
    with pytest.raises(RouteError, match="--speculative-draft-model-quantization modelopt_fp4 is not what the draft"):
        route_draft(replace(HYBRID, kind=kind, draft_quantization="modelopt_fp4"))
    assert route_draft(replace(HYBRID, draft_quantization="fp8")).runner == RUNNER


def test_no_route_is_refused_afterwards():
    """What the gate chooses must pass the checks of the dispatch."""
    assert not set(known_kernels.offered("nvfp4")) & set(known_kernels.refused("nvfp4"))
    assert not set(known_kernels.offered("mxfp4")) & set(known_kernels.refused("mxfp4"))
    for tp, ep in ((1, 1), (2, 1), (4, 2), (4, 4)):
        assert route_target(replace(HYBRID, tp=tp, ep=ep)).runner in known_kernels.offered("nvfp4")
