"""Batch-invariant launches: who gets which runner, and who is warned."""

from dataclasses import replace

import pytest

from sglang_sm120.moe.invariance import varying
from sglang_sm120.moe.launch import Launch
from sglang_sm120.moe.runners import Route, route_draft, route_target
from sglang_sm120.settings import RUNNER

HYBRID = Launch("hybrid-nvfp4", 4096, 2048, tp=2, speculative="EAGLE")
NATIVE = replace(HYBRID, kind="mxfp4")


@pytest.mark.parametrize("names", [True, False])
def test_batch_invariant_mxfp4_experts_go_to_the_runner_that_keeps_bits(names):
    launch = replace(NATIVE, invariant=True, takes_names=names)
    assert (route_target(launch).runner, route_draft(launch).runner) == (RUNNER, RUNNER)
    assert varying(launch, route_target(launch), route_draft(launch)) == []


def test_a_runner_asked_for_by_name_stays_and_is_warned_about():
    launch = replace(HYBRID, invariant=True, target_runner="marlin", draft_default="flashinfer_mxfp4")
    target, draft = varying(launch, route_target(launch), route_draft(launch))
    assert target.startswith("target: ")
    assert "Marlin NVFP4" in target
    assert "--moe-runner-backend out, or pass sm120_triton" in target
    assert "FlashInfer CUTLASS MXFP4" in draft
    assert "--speculative-moe-runner-backend" in draft


def test_nobody_is_warned_who_did_not_ask():
    launch = replace(HYBRID, target_runner="marlin")
    assert varying(launch, route_target(launch), Route("marlin", "")) == []
    assert route_target(NATIVE).runner is None


def test_experts_that_an_all_to_all_keeps_from_our_runner_are_warned_about():
    launch = replace(NATIVE, invariant=True, all_to_all="flashinfer")
    assert route_target(launch).runner is None
    target, draft = varying(launch, route_target(launch), route_draft(launch))
    assert target.startswith("target: batch-invariant experts were asked for, and --moe-a2a-backend flashinfer brings")
    assert draft.startswith("draft: ")
    assert varying(launch, route_target(launch), Route(RUNNER, "")) == [target]
    assert varying(replace(launch, kind="fp8"), Route(None, ""), Route(None, "")) == []
