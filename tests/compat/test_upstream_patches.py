"""The repairs for upstream, applied to their release, do what the overlay does, and the overlay sees so."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.compat import rows, run
from sglang_sm120.upstream import releases

AGAINST = releases.PROVEN[-1]
PATCHES = sorted((Path(__file__).parents[2] / "patches" / "upstream").glob("*.patch"))
HYBRID = [r for r in rows.ROWS if r.kind == "hybrid-nvfp4" and r.size == "flash" and not r.env]
CUTLASS, DRAFT = "flashinfer_cutlass (NVFP4)", "flashinfer_mxfp4 (FlashInfer CUTLASS MXFP4)"
GRID = {
    "hybrid-nvfp4": CUTLASS,
    "hybrid-nvfp4, EAGLE": f"{CUTLASS}; {DRAFT}",
    "hybrid-nvfp4, DSPARK": f"{CUTLASS}; {DRAFT}",
}
ON_SM120 = GRID | {
    "hybrid-nvfp4, EAGLE, draft=marlin": f"{CUTLASS}; marlin (Marlin MXFP4)",
    "hybrid-nvfp4, EAGLE, target=marlin": "marlin (NVFP4); marlin (Marlin MXFP4)",
    "hybrid-nvfp4, EAGLE, --tp 4 --ep-size 2": "marlin (NVFP4); marlin (Marlin MXFP4)",
    "hybrid-nvfp4, EAGLE, --tp 2 --quantization fp8": "marlin (NVFP4); marlin (Marlin MXFP4)",
}
TRTLLM = "flashinfer_trtllm_routed (NVFP4); flashinfer_mxfp4 (FlashInfer TRT-LLM MXFP4)"


@pytest.fixture(scope="module")
def patched(release_tree, tmp_path_factory):
    """names of patches -> a tree of links to the release with those patches applied."""

    def make(*patches):
        tree = tmp_path_factory.mktemp("patched") / "tree"
        shutil.copytree(release_tree(AGAINST), tree, copy_function=os.symlink)
        for patch in patches:
            for line in patch.read_text().splitlines():
                if line.startswith("--- a/python/"):
                    file = tree / line.removeprefix("--- a/python/")
                    original = file.resolve()
                    file.unlink()
                    shutil.copyfile(original, file)
            subprocess.run(["git", "apply", "-p2", str(patch)], cwd=tree, check=True)
        return tree

    return make


def _outcomes(cells):
    return {c.row.id: c.outcome for c in cells}


STANDS_DOWN = {
    "both": (PATCHES, {"deepseek_v4_gate", "mxfp4_nextn"}, f"{CUTLASS}; {DRAFT}"),
    "target only": (PATCHES[:1], {"deepseek_v4_gate"}, f"{CUTLASS}; sm120_triton (ours)"),
}
DRAFTS = ("hybrid-nvfp4, EAGLE", "hybrid-nvfp4, DSPARK")


@pytest.fixture(scope="module")
def cells(patched, side_by_side):
    """What came of each question."""
    both, target = patched(*PATCHES), patched(*PATCHES[:1])
    questions = {
        "sm120": ("sm120", [r for r in HYBRID if r.id in ON_SM120], ("stock",), both),
        "sm100": ("sm100", [r for r in HYBRID if r.id in DRAFTS], ("stock",), both),
        "both": ("sm120", [r for r in HYBRID if r.id == DRAFTS[0]], ("ours",), both),
        "target only": ("sm120", [r for r in HYBRID if r.id == DRAFTS[0]], ("ours",), target),
    }
    answers = side_by_side([(run.run, AGAINST, *question) for question in questions.values()])
    return dict(zip(questions, answers, strict=True))


def test_without_the_overlay(cells):
    assert _outcomes(cells["sm120"]) == {name: f"runs: {outcome}" for name, outcome in ON_SM120.items()}


def test_sm100_is_as_before(cells):
    assert _outcomes(cells["sm100"]) == dict.fromkeys(DRAFTS, f"gets: {TRTLLM}")


@pytest.mark.parametrize("which", STANDS_DOWN)
def test_the_overlay_stands_down(which, cells):
    """By what the release does, not by its version or text: a mended fault is `not needed`, the other patches stay."""
    _, mended, outcome = STANDS_DOWN[which]
    (cell,) = cells[which]
    assert cell.outcome == f"runs: {outcome}"
    states = {p["name"]: (p["status"], p["reason"]) for p in cell.document["patches"]}
    for name in mended:
        assert states[name][0] == "not needed", states[name]
        assert "by itself" in states[name][1]
    others = {n for n, (status, _) in states.items() if status == "applied"}
    always = {"runner_name", "draft_format", "mxfp4_experts", "weight_updates"}
    assert others == always | {"deepseek_v4_gate", "mxfp4_nextn"} - mended
