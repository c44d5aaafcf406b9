"""What reaches the NVFP4 kernels of a hybrid checkpoint's target, stock and with the overlay, in real SGLang."""

import pytest

from sglang_sm120.patches import probe_checkpoint

CLAMP = {"swiglu_alpha": [1.0] * 4, "swiglu_beta": [0.0] * 4, "swiglu_limit": [10.0] * 4}
STOCK, OURS = "__none__", "sm120"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(probe_checkpoint.write(tmp_path_factory.mktemp("hybrid"), "hybrid-nvfp4", "nextn"))


@pytest.mark.parametrize("release", ["0.5.14", "0.5.15", "0.5.18", "0.5.20"])
def test_the_clamp_reaches_flashinfer(release, ask, model):
    """0.5.14 calls the kernel from the method, later releases from the runner; each era has its own wrapping."""
    seen = ask("kernel_probe.py", "flashinfer_cutlass", stdin=model, release=release, SGLANG_PLUGINS=OURS)
    assert seen.pop("called")
    assert {k: v for k, v in seen.items() if k.startswith("swiglu_")} == CLAMP


@pytest.mark.parametrize(("release", "passed"), [("0.5.20", {}), ("0.5.21", CLAMP)])
def test_stock_drops_the_clamp_up_to_0_5_20(release, passed, ask, model):
    seen = ask("kernel_probe.py", "flashinfer_cutlass", stdin=model, release=release, SGLANG_PLUGINS=STOCK)
    assert seen["called"]
    assert {k: v for k, v in seen.items() if k.startswith("swiglu_")} == passed


@pytest.mark.parametrize(
    ("release", "plugins", "in_topk", "in_kernel"),
    [
        ("0.5.14", OURS, True, None),
        ("0.5.16", OURS, True, None),
        ("0.5.16", STOCK, True, 1.5),  # twice: the fault
        ("0.5.17", OURS, False, 1.5),
    ],
)
def test_marlin_scales_once(release, plugins, in_topk, in_kernel, ask, model):
    seen = ask("kernel_probe.py", "marlin", stdin=model, release=release, SGLANG_PLUGINS=plugins)
    assert seen["called"]
    assert seen["clamp_limit"] == 10.0
    assert (seen["topk_scales"], seen["routed_scaling_factor"]) == (in_topk, in_kernel)
