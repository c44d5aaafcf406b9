"""What reaches the NVFP4 kernels of a hybrid checkpoint's target, stock and with the overlay, in real SGLang."""

import pytest

from sglang_sm120.checkpoint import headers_only

CLAMP = {"swiglu_alpha": [1.0] * 4, "swiglu_beta": [0.0] * 4, "swiglu_limit": [10.0] * 4}
STOCK, OURS = "__none__", "sm120"


FLASHINFER = [  # release, side, what reaches the kernel; 0.5.14 calls it from the method, later ones from the runner
    ("0.5.14", OURS, CLAMP),
    ("0.5.16", OURS, CLAMP),
    ("0.5.20", OURS, CLAMP),
    ("0.5.20", STOCK, {}),  # the fault
    ("0.5.21", STOCK, CLAMP),
]
MARLIN = [  # release, side, whether top-k scales, the factor that reaches the kernel
    ("0.5.14", OURS, True, None),
    ("0.5.16", OURS, True, None),
    ("0.5.16", STOCK, True, 1.5),  # twice: the fault
    ("0.5.17", OURS, False, 1.5),
]


@pytest.fixture(scope="module")
def seen(ask, side_by_side, release_tree, tmp_path_factory):
    """(runner, release, side) -> the arguments that reached the kernel."""
    model = str(headers_only.write(tmp_path_factory.mktemp("hybrid"), "hybrid-nvfp4", "nextn"))
    keys = [("flashinfer_cutlass", *case[:2]) for case in FLASHINFER] + [("marlin", *case[:2]) for case in MARLIN]
    for _, release, _ in keys:
        release_tree(release)

    def probe(runner, release, side):
        return ask("kernel_probe.py", runner, stdin=model, release=release, SGLANG_PLUGINS=side)

    return dict(zip(keys, side_by_side([(probe, *key) for key in keys]), strict=True))


@pytest.mark.parametrize(("release", "side", "clamp"), FLASHINFER)
def test_the_clamp_that_reaches_flashinfer(release, side, clamp, seen):
    arguments = seen["flashinfer_cutlass", release, side]
    assert arguments["called"]
    assert {k: v for k, v in arguments.items() if k.startswith("swiglu_")} == clamp


@pytest.mark.parametrize(("release", "side", "in_topk", "in_kernel"), MARLIN)
def test_marlin_scales_once(release, side, in_topk, in_kernel, seen):
    arguments = seen["marlin", release, side]
    assert arguments["called"]
    assert arguments["clamp_limit"] == 10.0
    assert (arguments["topk_scales"], arguments["routed_scaling_factor"]) == (in_topk, in_kernel)
