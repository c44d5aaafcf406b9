"""The table of kernels: what it names exists, and its answers fit together."""

import importlib.util
import re
from pathlib import Path

import pytest

from sglang_sm120.moe import known_kernels
from sglang_sm120.moe.known_kernels import KERNELS
from sglang_sm120.settings import DRAFT_RUNNERS, RUNNER, TARGET_RUNNERS


def _classes(*directories):
    return {
        name
        for directory in directories
        for file in Path(directory).rglob("*.py")
        for name in re.findall(r"^class (\w+)[(:]", file.read_text(encoding="utf-8"), re.MULTILINE)
    }


def test_every_method_is_a_class_of_sglang_or_of_ours():
    """A class that is renamed upstream would make `plan` say of a layer that its kernel is not known."""
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        pytest.skip("SGLang is not installed")
    methods = {kernel.method for kernel in KERNELS.values() if kernel.method}
    theirs = Path(next(iter(found.submodule_search_locations)), "srt", "layers", "quantization")
    assert methods <= _classes(theirs, Path(known_kernels.__file__).parent)


def test_a_runner_without_a_kernel_says_why():
    assert [key for key, kernel in KERNELS.items() if kernel.method is None and not kernel.why_not] == []
    assert [key for key, kernel in KERNELS.items() if kernel.offered and kernel.why_not] == []


def test_the_variable_of_the_draft_offers_what_reads_mxfp4():
    assert set(DRAFT_RUNNERS) - {"auto"} == set(known_kernels.offered("mxfp4")) - {"deep_gemm"}


def test_the_variable_of_the_target_offers_what_reads_either():
    either = {*known_kernels.offered("mxfp4"), *known_kernels.offered("nvfp4")}
    assert set(TARGET_RUNNERS) - {"auto"} == either - {"deep_gemm"}  # SGLang's flag alone takes that


@pytest.mark.parametrize("experts", ["nvfp4", "mxfp4", "fp8"])
def test_kernels_that_sm120_lacks_are_a_fault_of_the_plan_too(experts):
    """What routing refuses for lack of kernels `plan` must not call sound, and the reverse."""
    for (of, runner), kernel in KERNELS.items():
        if of == experts and kernel.method and runner != RUNNER:
            fault = known_kernels.fault(kernel.method, runner, 12, packed=experts == "mxfp4")
            assert (fault is None) == (kernel.why_not is None), runner
