"""A layer's output against float64: how far off it may be, whether it repeats itself, and the same in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sglang_sm120.commands import gpu_timing
from sglang_sm120.commands.one_runner.cases import Case

# Relative L2 error that a right kernel stays below, by the type of its activations.
# bf16: gate and up, the product of both, each route and the sum are rounded to bf16 (2^-9/sqrt(3) of the value each, at
# most), and the two global scales of NVFP4 may be (as much again, twice): 4.1e-3 together, times two.
# mxfp8: two e4m3 roundings (2^-4/sqrt(3) each at most), as in selftest. nvfp4: two e2m1 roundings of 9.6e-2 each, which
# is what normal values lose with a scale for 16 of them: 1.4e-1, times two.
BOUNDS = {"bf16": 8e-3, "mxfp8": 8e-2, "nvfp4": 2.8e-1}
WIDEST = "nvfp4"
WORST = 3.0  # a single token's error over the bound: it averages over H values of K experts
Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def activations(experts: str, runner: str, major: int, ours: str = "bf16") -> str:
    """The type in which a runner's kernel multiplies activations: a key of BOUNDS, the widest for an unknown one.

    Args:
        experts: format of the weights.
        runner: SGLang's name, or ours.
        major: major compute capability.
        ours: what our kernel was asked to use.
    """
    known = {
        ("nvfp4", "marlin"): "bf16",
        ("mxfp4", "marlin"): "bf16",
        ("mxfp4", "flashinfer_mxfp4"): "bf16" if major == 9 else "mxfp8",
        ("mxfp4", "deep_gemm"): "mxfp8",
        ("mxfp4", "humming"): "bf16",
        ("nvfp4", "sm120_triton"): "bf16",
        ("mxfp4", "sm120_triton"): ours,
    }
    return known.get((experts, runner), WIDEST)


def compared(call: Call, reference: Call, case: Case, bound: float) -> dict[str, Any]:
    """A row of what was found for a case: eager, again, and on a GPU from a CUDA graph, replayed twice.

    Keys: `case`, `error` (relative L2), `worst` (of a token), `bound`, `repeats` (equal bits), `right`, `apart`.
    """
    want = reference(case.x, case.ids, case.weights)
    outputs = [call(case.x, case.ids, case.weights) for _ in range(2)]
    if case.x.is_cuda:
        outputs += _from_graph(call, case)
    found = [_errors(output, want) for output in outputs]
    error, worst = (max(values) for values in zip(*found, strict=True))
    groups = (outputs[:2], outputs[2:])  # a captured call may take another path than an eager one
    return {
        "case": case.name,
        "error": error,
        "worst": worst,
        "bound": bound,
        "right": error <= bound and worst <= WORST * bound,
        "repeats": all(torch.equal(same[0], other) for same in groups for other in same[1:]),
        "apart": case.apart,
    }


def _from_graph(call: Call, case: Case) -> list[torch.Tensor]:
    """What two replays leave, the first on other inputs than were captured."""
    x, ids, weights = (torch.zeros_like(t) for t in (case.x, case.ids, case.weights))
    ids.copy_(case.ids.flip(0))
    held: list[torch.Tensor] = []

    def captured() -> None:
        held[:] = [call(x, ids, weights)]

    graph = gpu_timing.captured(captured)
    found = []
    for _ in range(2):
        for static, given in zip((x, ids, weights), (case.x, case.ids, case.weights), strict=True):
            static.copy_(given)
        graph.replay()
        torch.cuda.synchronize()
        found.append(held[0].clone())
    return found


def _errors(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Relative L2 error of all, and of the worst token; infinite where a value is not finite or should be zero."""
    if not bool(got.isfinite().all()):
        return float("inf"), float("inf")
    difference, size = (got.double() - want).norm(dim=1), want.norm(dim=1)
    empty = size == 0
    if bool((difference[empty] > 0).any()):
        return float("inf"), float("inf")
    if bool(empty.all()):  # every expert is another rank's
        return 0.0, 0.0
    return float(difference.norm() / size.norm()), float((difference[~empty] / size[~empty]).max())
