"""Settings that SGLang overrides or that lack kernels on SM120: `plan` names each, with the variable to set."""

import pytest

from scripts.compat import rows, run
from sglang_sm120.checkpoint import headers_only

JIT = "SGLANG_ENABLE_JIT_DEEPGEMM"
TRAPS = {
    "none": {},
    "top-k v2": {"SGLANG_OPT_USE_TOPK_V2": "1"},
    "projection": {"SGLANG_OPT_FP8_WO_A_GEMM": "1"},
    "experts": {"SGLANG_DSV4_FP4_EXPERTS": "0"},
    "no deep gemm": {JIT: "0"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(headers_only.write(tmp_path_factory.mktemp("hybrid"), "hybrid-nvfp4", "nextn"))


def _warnings(model, release, arch):
    scenarios = [
        {"id": name, "model": model, "flags": list(rows.TP2), "env": run.OURS | env} for name, env in TRAPS.items()
    ]
    answers = run.ask(scenarios, arch, run.cache.environment(release))
    return {answer["id"]: answer["warnings"] for answer in answers}


CASES = [("0.5.18", "sm121"), ("0.5.23", "sm121"), ("0.5.18", "sm100")]


@pytest.fixture(scope="module")
def warned(model, release_tree, side_by_side):
    """(release, architecture) -> name of the trap -> warnings."""
    for release, _ in CASES:
        release_tree(release)
    return dict(zip(CASES, side_by_side([(_warnings, model, *case) for case in CASES]), strict=True))


@pytest.mark.parametrize(("release", "old"), [("0.5.18", True), ("0.5.23", False)])
def test_traps(release, old, warned):
    """0.5.18 overwrites the whole block of variables and turns DeepGEMM on for SM121 unasked; 0.5.23 does neither."""
    found = warned[release, "sm121"]
    assert [w for w in found["none"] if JIT in w] == found["none"]
    assert bool(found["none"]) == old
    assert not [w for w in found["no deep gemm"] if JIT in w]
    assert any("SGLANG_OPT_USE_TOPK_V2=1 has no effect" in w and "unset it" in w for w in found["top-k v2"])
    assert any("SGLANG_OPT_FP8_WO_A_GEMM=1" in w for w in found["projection"]) == old
    assert any("unset it" in w and "SGLANG_DSV4_FP4_EXPERTS=0" in w for w in found["experts"])


def test_no_warnings_where_the_overlay_does_not_act(warned):
    assert [w for warnings in warned["0.5.18", "sm100"].values() for w in warnings] == []
