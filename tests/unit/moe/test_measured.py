"""Which runner `auto` takes from a table of `tune`, and when it takes none."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sglang_sm120.gpu import Gpu
from sglang_sm120.moe import auto, decisions, runner_tables
from sglang_sm120.moe.auto import Auto, mix_of
from sglang_sm120.moe.launch import Launch
from sglang_sm120.moe.measured import Mix, choose
from sglang_sm120.moe.runner_tables import Layer, Place, Row, Time
from sglang_sm120.moe.runners import route_draft, route_target
from sglang_sm120.patches import deepseek_v4_gate

COUNTS = tuple(2**n for n in range(14))
OURS, MARLIN, CUTLASS = "sm120_triton", "marlin", "flashinfer_cutlass"
ALL = (OURS, MARLIN, CUTLASS)


def row(status="right", factor=1.0, counts=COUNTS, spread=0.002, large=1.0):
    """A runner that takes 20 us and 0.2 a token, times `factor`; above 1024 tokens times `large` too."""
    times = {}
    for t in counts:
        us = (20 + 0.2 * t) * factor * (large if t > 1024 else 1.0)
        times[t] = Time(us, us * (1 - spread / 2), us * (1 + spread / 2))
    return Row(status, "clamp T=6" if status != "right" else "", times)


@pytest.mark.parametrize(
    ("rows", "allowed", "mix", "chosen"),
    [
        ({OURS: row(), MARLIN: row(factor=0.8)}, ALL, Mix(), MARLIN),
        ({OURS: row(), MARLIN: row(factor=1.2)}, ALL, Mix(), OURS),
        ({OURS: row()}, ALL, Mix(), OURS),
        # a tie goes to the fixed choice, within 2 % or what the times wander by themselves
        ({OURS: row(), MARLIN: row(factor=0.985)}, ALL, Mix(), OURS),
        ({OURS: row(), MARLIN: row(factor=0.97)}, ALL, Mix(), MARLIN),
        ({OURS: row(), MARLIN: row(factor=0.95, spread=0.1)}, ALL, Mix(), OURS),
        # equal runners: the same one each time
        ({OURS: row("wrong"), CUTLASS: row(), MARLIN: row()}, ALL, Mix(), CUTLASS),
        # only right ones, however fast
        ({OURS: row(), MARLIN: row("wrong", 0.1)}, ALL, Mix(), OURS),
        ({OURS: row(), MARLIN: row("unsteady", 0.1)}, ALL, Mix(), OURS),
        ({OURS: row(), MARLIN: row("equal scales only", 0.1)}, ALL, Mix(), OURS),
        ({OURS: row(), MARLIN: row("hung", 0.1, ())}, ALL, Mix(), OURS),
        ({OURS: row("crashed", counts=()), MARLIN: row()}, ALL, Mix(), MARLIN),
        ({OURS: row("wrong"), MARLIN: row("wrong")}, ALL, Mix(), None),
        # what this launch or this release cannot have
        ({OURS: row(), MARLIN: row(factor=0.5)}, (OURS, CUTLASS), Mix(), OURS),
        ({OURS: row(), "deep_gemm": row(factor=0.5)}, ALL, Mix(), OURS),
        # missing token counts
        ({OURS: row(), MARLIN: row(factor=0.5, counts=(1, 2, 4))}, ALL, Mix(batches=(1, 8)), OURS),
        ({OURS: row(counts=(1, 2)), MARLIN: row(factor=2)}, ALL, Mix(batches=(8,)), None),
        ({OURS: row("unmeasured", counts=()), MARLIN: row()}, ALL, Mix(), None),
        ({OURS: row("hung", counts=()), MARLIN: row()}, ALL, Mix(), None),
        ({MARLIN: row()}, ALL, Mix(), None),
        ({}, ALL, Mix(), None),
        # between counts, and a chunk above all of them
        ({OURS: row(), MARLIN: row(factor=0.8)}, ALL, Mix(batches=(3, 5, 24), drafted=(3,), chunk=16384), MARLIN),
        # the launch's own mix decides: a runner that is fast with many tokens, for a launch of large batches
        ({OURS: row(), MARLIN: row(factor=1.1, large=0.1)}, ALL, Mix(batches=(1, 2), chunk=8192), OURS),
        ({OURS: row(), MARLIN: row(factor=1.1, large=0.1)}, ALL, Mix(batches=(256, 512), drafted=(4,)), MARLIN),
    ],
)
def test_the_fastest_right_runner_of_the_launch(rows, allowed, mix, chosen):
    found = choose(rows, allowed, OURS, mix)
    assert found.runner == chosen, found
    if chosen is None:
        assert found.why
    elif found.other:
        assert found.other != chosen
        assert f"{found.us:.2f}" in found.says()
        assert f"{found.other} {found.other_us:.2f}" in found.says()


def test_what_was_left_out_is_named_with_its_reason():
    found = choose({OURS: row(), MARLIN: row("wrong"), CUTLASS: row(counts=(1,))}, ALL, OURS, Mix())
    assert found.out == {MARLIN: "wrong: clamp T=6", CUTLASS: "no times near 2 tokens"}


def test_the_figures_are_of_a_token_made_with_its_share_of_the_prompt():
    decode, prompt = (20 + 0.2 * 8) / 4, 4 * (20 + 0.2 * 8192) / 8192
    found = choose({OURS: row()}, ALL, OURS, Mix(batches=(4,), drafted=(2,)))
    assert found.us == pytest.approx(decode + prompt)


HYBRID = Launch("hybrid-nvfp4", 4096, 2048, tp=2, speculative="EAGLE", experts=256, top_k=6)
NATIVE = Launch("mxfp4", 4096, 2048, tp=2, experts=256, top_k=6)
NVFP4, MXFP4 = (Layer(f, 256, 4096, 1024, 6, 2) for f in ("nvfp4", "mxfp4"))


def follows(launch, table, **facts):
    return replace(launch, **{"auto": Auto(table)} | facts)


def test_a_target_follows_the_table_and_a_flag_wins():
    launch = follows(HYBRID, {NVFP4: {OURS: row(), MARLIN: row(factor=0.5)}})
    found = route_target(launch)
    assert found.runner == MARLIN
    assert "us a token in each layer; sm120_triton" in found.reason
    assert route_target(follows(launch, launch.auto.table, target_runner=CUTLASS)).runner is None
    assert route_target(follows(launch, launch.auto.table, target_default=OURS)).runner == OURS
    assert route_target(HYBRID).runner == OURS  # SGLANG_SM120_AUTO=fixed


@pytest.mark.parametrize(("equal", "chosen"), [(True, CUTLASS), (False, OURS), (None, OURS)])
def test_a_runner_that_needs_equal_scales_is_taken_where_the_checkpoint_has_them(equal, chosen):
    asked = []
    table = {NVFP4: {OURS: row(), CUTLASS: row("equal scales only", 0.5)}}
    found = route_target(follows(HYBRID, table, auto=Auto(table, equal_scales=lambda: asked.append(1) or equal)))
    assert (found.runner, asked) == (chosen, [1])
    slow = {NVFP4: {OURS: row(), CUTLASS: row("equal scales only", 1.5)}}
    route_target(follows(HYBRID, slow, auto=Auto(slow, equal_scales=lambda: asked.append(1))))
    assert asked == [1]  # the files are read only where that decides


def test_a_draft_follows_it_too_with_the_runners_that_drafts_have():
    table = {MXFP4: {OURS: row(), MARLIN: row(factor=0.5), "deep_gemm": row(factor=0.1)}}
    assert route_draft(follows(HYBRID, table)).runner == MARLIN
    assert route_draft(follows(HYBRID, table, draft_runner=OURS)).runner == OURS


def test_a_draft_whose_scales_the_loader_would_convert_keeps_the_runner_that_takes_bytes():
    launch = Launch("hybrid-nvfp4", 4096, 2048, tp=2, speculative="EAGLE", draft_converted_scales="U8")
    for kind in ("hybrid-nvfp4", "fp8"):
        of_kind = replace(launch, kind=kind, draft_kind="mxfp4")
        assert (
            route_draft(
                follows(of_kind, {replace(MXFP4, top_k=0, experts=0): {OURS: row(), MARLIN: row(factor=0.5)}})
            ).runner
            == OURS
        )


def test_native_experts_follow_it_with_every_runner_of_the_release():
    table = {MXFP4: {"flashinfer_mxfp4": row(), "deep_gemm": row(factor=0.5), OURS: row(factor=0.6)}}
    assert route_target(follows(NATIVE, table)).runner == "deep_gemm"
    slow = {MXFP4: {"flashinfer_mxfp4": row(), OURS: row(factor=2)}}
    found = route_target(follows(NATIVE, slow))
    assert found.runner is None  # SGLang's own choice stays SGLang's
    assert "measured here" in found.reason
    narrow = follows(Launch("mxfp4", 5120, 2304, tp=4, experts=384, top_k=6), {})
    assert route_target(narrow).runner == OURS


def test_native_experts_keep_sglangs_runner_in_a_launch_that_ours_cannot_follow():
    table = {MXFP4: {"flashinfer_mxfp4": row(), MARLIN: row(factor=0.8), OURS: row(factor=0.6)}}
    assert route_target(follows(NATIVE, table)).runner == OURS
    assert route_target(follows(NATIVE, table, ours_can_follow=False)).runner == MARLIN


@pytest.mark.parametrize("change", [{"tp": 4}, {"ep": 2}, {"hidden_size": 7168}, {"top_k": 8}, {"experts": 384}])
def test_a_table_of_another_layer_is_not_used(change):
    launch = follows(HYBRID, {NVFP4: {OURS: row(), MARLIN: row(factor=0.5)}}, **change)
    found = route_target(launch)
    assert found.runner == OURS
    assert f"`sglang-sm120 tune --model-path DIR --tp {launch.tp}" in found.reason


def test_the_log_says_what_auto_follows_or_which_command_measures(caplog, monkeypatch):
    monkeypatch.setattr(decisions, "_SAID", set())
    measured_here = follows(HYBRID, {NVFP4: {OURS: row(), MARLIN: row(factor=0.5)}})
    with caplog.at_level("INFO", logger="sglang_sm120"):
        deepseek_v4_gate._say(HYBRID, "draft", route_draft(HYBRID))  # fixed: nothing to say
        deepseek_v4_gate._say(measured_here, "target", route_target(measured_here))
        deepseek_v4_gate._say(measured_here, "draft", route_draft(measured_here))
    first, second = caplog.messages
    assert first.startswith("MoE target: marlin: measured here: ")
    assert "`sglang-sm120 tune --model-path DIR --tp 2` does" in second


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A home with a table for a card; returns what changes the file."""
    monkeypatch.setenv("SGLANG_SM120_HOME", str(tmp_path))
    monkeypatch.setattr(auto.gpu, "detect", lambda: Gpu((12, 0), "NVIDIA Test", "nvml"))
    monkeypatch.setattr(auto.releases, "installed", lambda: "0.5.23")
    here = Place("NVIDIA Test", "0.5.23")

    def write(**changes):
        times = [{"tokens": t, "us": 1.0, "low": 0.9, "high": 1.1} for t in COUNTS]
        entry = vars(NVFP4) | {"runners": [{"runner": OURS, "status": "right", "times": times}]}
        document = {"schema": 1, "kind": "runners", **vars(here), "layers": [entry]} | changes
        runner_tables.path_for(here).write_text(json.dumps(document))

    return write


def test_the_table_of_this_place_is_found(home):
    home()
    table, problem = auto.held_here()
    assert (list(table), problem) == ([NVFP4], "")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"gpu": "NVIDIA Other"}, "it is for gpu 'NVIDIA Other'"),
        ({"sglang": "0.5.22"}, "it is for sglang '0.5.22'"),
        ({"overlay": "0.0.9"}, "it is for overlay '0.0.9'"),
        ({"schema": 0}, "schema 0"),
        ({"schema": 2}, "schema 2"),
        ({"layers": [{}]}, "has not the form"),
        ({"layers": [vars(NVFP4) | {"runners": [{"runner": OURS, "status": "fine"}]}]}, "'fine'"),
        ({"layers": None}, "no list"),
        ({"kind": "tune"}, "does not say for which"),
    ],
)
def test_a_table_of_another_place_or_form_is_not_used_and_said(home, changes, says):
    home(**changes)
    table, problem = auto.held_here()
    assert table is None
    assert says in problem


def test_without_a_table_the_command_that_makes_one_is_named(home):
    found = Auto(*auto.held_here()).choose(NVFP4, "target", OURS, ALL)
    assert found.runner is None
    assert found.says() == (
        "runners were not measured on this GPU with this SGLang; `sglang-sm120 tune --model-path DIR --tp 2` does"
    )


def test_doctor_shows_the_choice_with_both_figures_or_the_command(home):
    assert "`sglang-sm120 tune --model-path DIR --tp N` does" in auto.described("measured")[0]
    assert auto.described("fixed") == ["SGLANG_SM120_AUTO=fixed: launches follow no table of runners"]
    times = {name: [{"tokens": t, "us": us, "low": us, "high": us} for t in COUNTS] for name, us in
             ((OURS, 2.0), (MARLIN, 1.0))}  # fmt: skip
    right = [{"runner": name, "status": "right", "times": found} for name, found in times.items()]
    wrong = {"runner": CUTLASS, "status": "wrong", "why": "clamp T=6", "times": []}
    home(layers=[vars(NVFP4) | {"runners": [*right, wrong]}])
    first, second = auto.described("measured")
    assert first.startswith("nvfp4 256,4096,1024,6 TP2: marlin (measured here: ")
    assert "; sm120_triton " in first
    assert second == "nvfp4 256,4096,1024,6 TP2: flashinfer_cutlass is out, wrong: clamp T=6"


FLAGS = {"speculative_algorithm": None, "chunked_prefill_size": None}


@pytest.mark.parametrize(
    ("flags", "role", "mix"),
    [
        ({}, "target", Mix()),
        ({"cuda_graph_bs": [1, 4]}, "target", Mix((1, 4))),
        ({"cuda_graph_bs_decode": [1, 6], "cuda_graph_bs": None}, "target", Mix((1, 6))),
        ({"cuda_graph_max_bs": 4}, "target", Mix((1, 2, 4))),
        ({"max_running_requests": 2, "chunked_prefill_size": 4096}, "target", Mix((1, 2), (1,), 4096)),
        ({"chunked_prefill_size": -1}, "target", Mix()),
        ({"speculative_algorithm": "EAGLE"}, "target", Mix(drafted=(4,))),
        ({"speculative_algorithm": "EAGLE", "speculative_num_steps": 1, "speculative_num_draft_tokens": 2}, "draft",
         Mix(drafted=(2,))),
        ({"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_num_draft_tokens": 4}, "draft",
         Mix(drafted=(1, 4))),
    ],
)  # fmt: skip
def test_the_mix_of_a_launch(flags, role, mix):
    assert mix_of(SimpleNamespace(**FLAGS | flags), role) == mix
