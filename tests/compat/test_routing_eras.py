"""Routing where releases differ: names that flags cannot carry, kernels that are missing, expert ids under DSpark."""

import pytest

from sglang_sm120.moe import runners
from sglang_sm120.moe.launch import Launch
from sglang_sm120.moe.refusals import RouteError
from sglang_sm120.upstream import features, server_flags

OLD = {"takes_names": False, "ids_per_layer": False, "deep_gemm_fp4": False}  # SGLang 0.5.16 to 0.5.18
OLDEST = OLD | {"cutlass_mxfp4": False, "default_reads_fp4_only": True}  # and before
PRO_TP16 = {"hidden_size": 7168, "moe_intermediate_size": 3072, "tp": 16}


def launch(kind, **facts):
    return Launch(**({"kind": kind, "hidden_size": 4096, "moe_intermediate_size": 2048, "tp": 2} | facts))


def test_a_shape_that_flashinfer_refuses_gets_marlin_where_flags_take_no_names():
    assert runners.route_target(launch("mxfp4", **PRO_TP16)).runner == "sm120_triton"
    assert runners.route_target(launch("mxfp4", **PRO_TP16, **OLD)).runner == "marlin"
    assert runners.route_target(launch("mxfp4", **PRO_TP16, **OLDEST)).runner is None  # its default is marlin already


def test_a_refusal_names_only_what_this_sglang_has():
    with pytest.raises(RouteError) as caught:
        runners.route_target(launch("mxfp4", target_runner="flashinfer_mxfp4", **OLDEST))
    assert "These can: marlin;" in str(caught.value)
    with pytest.raises(RouteError, match="These can: flashinfer_mxfp4, marlin;"):
        runners.route_target(launch("mxfp4", target_runner="triton", **OLD))


def test_fp8_experts_get_triton_where_the_default_reads_fp4_only():
    assert runners.route_target(launch("fp8")).runner is None
    assert runners.route_target(launch("fp8", **OLDEST)).runner == "triton"
    assert runners.route_target(launch("fp8", target_runner="cutlass", **OLDEST)).runner is None


@pytest.mark.parametrize("runner", ["marlin", "flashinfer_mxfp4"])
def test_fp8_experts_refuse_runners_that_read_fp4(runner):
    for route, flag in ((runners.route_target, "target_runner"), (runners.route_draft, "draft_runner")):
        with pytest.raises(RouteError, match=runner):
            route(launch("fp8", speculative="EAGLE", **{flag: runner}))


def test_the_variable_serves_native_drafts_too():
    assert runners.route_draft(launch("mxfp4", speculative="EAGLE")).runner is None
    asked = launch("mxfp4", speculative="EAGLE", draft_default="sm120_triton", **OLD)
    assert runners.route_draft(asked).runner == "sm120_triton"
    flagged = launch("mxfp4", speculative="EAGLE", draft_default="sm120_triton", draft_runner="marlin")
    assert runners.route_draft(flagged).runner is None  # the flag wins, and SGLang honours it


@pytest.mark.parametrize(
    ("facts", "stops"),
    [
        # FlashInfer's ids are global, Marlin's and ours local.
        ({"ep": 4, "draft_runner": "marlin", "target_runner": "flashinfer"}, True),
        ({"ep": 4, "draft_runner": "flashinfer_mxfp4", "target_runner": "flashinfer"}, False),
        ({"ep": 4, "draft_runner": "flashinfer_mxfp4", "target_default": "sm120_triton"}, True),
        ({"ep": 4, "draft_runner": "marlin", "target_default": "sm120_triton"}, False),
        ({"ep": 4, "draft_runner": "marlin", "ids_per_layer": True}, False),
        ({"ep": 1, "draft_runner": "marlin"}, False),
        ({"ep": 4, "draft_runner": "marlin", "target_runner": "marlin"}, False),
        ({"ep": 4, "draft_runner": "flashinfer_mxfp4", "target_runner": "marlin"}, True),
        ({"ep": 4}, False),
    ],
)
@pytest.mark.parametrize("kind", ["hybrid-nvfp4", "mxfp4"])
def test_dspark_keeps_the_targets_expert_ids(kind, facts, stops):
    if facts.get("target_runner") == "flashinfer":
        facts = facts | {"target_runner": "flashinfer_cutlass" if kind == "hybrid-nvfp4" else "flashinfer_mxfp4"}
    asked = launch(kind, **{"speculative": "DSPARK", "tp": 4, "ids_per_layer": False} | facts)
    if not stops:
        assert runners.route_draft(asked).runner in ("sm120_triton", asked.draft_runner)
        return
    with pytest.raises(RouteError, match="numbers the draft's experts"):
        runners.route_draft(asked)


def test_ours_travels_under_a_name_that_old_flags_have(monkeypatch):
    monkeypatch.setattr(features, "takes_runner_names", lambda: False)
    assert server_flags.flag_name("sm120_triton") == "triton"
    assert server_flags.flag_name("marlin") == server_flags.meant("marlin") == "marlin"
    assert server_flags.meant("triton") == "sm120_triton"
    monkeypatch.setattr(features, "takes_runner_names", lambda: True)
    assert server_flags.flag_name("sm120_triton") == server_flags.meant("sm120_triton") == "sm120_triton"
    assert server_flags.meant("triton") == "triton"
