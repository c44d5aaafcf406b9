"""Which kernel a MoE runner has for a format of experts, and which GPUs have that kernel: the one table of it.

From SGLang's dispatch and the kernels' own build lists: trtllm-gen and CuteDSL MoE kernels exist for SM100 only, and
SGLang's NVFP4 method implements no runner but these two families, FlashInfer CUTLASS and Marlin. Routing, the patches,
`plan` and `verify` ask here. No torch, no SGLang.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sglang_sm120.settings import RUNNER

Format = Literal["nvfp4", "mxfp4", "fp8"]
# moe/mxfp4_method.py and moe/nvfp4_method.py; by name, because these modules need torch and SGLang.
METHOD, OUR_NVFP4_METHOD = "Sm120Mxfp4MoEMethod", "Sm120Nvfp4MoEMethod"
OURS = (METHOD, OUR_NVFP4_METHOD)
NVFP4_METHOD, FP8_METHOD = "ModelOptNvFp4FusedMoEMethod", "Fp8MoEMethod"  # SGLang's, each for several runners
NOT_MXFP4 = "it would read the packed FP4 bytes as another format"
# Columns of an expert on a rank, in SGLang's NVFP4 method: FlashInfer CUTLASS pads no gated experts, whose rows, gate
# and up together, are swizzled in tiles of 128; Marlin's tiles have 64 columns.
NVFP4_MULTIPLE = 64
SM12X = 12  # major compute capability


@dataclass(frozen=True)
class Kernel:
    """What a runner does with experts of a format.

    Attributes:
        name: for people; empty where there is no such kernel.
        method: the class that SGLang, or a patch, gives a layer for it; None if no layer gets one.
        majors: major compute capabilities that have it.
        reason: why SM120 has none, where the architectures do not say it.
        offered: named as an alternative when another runner is refused.
        global_ids: picks a rank's experts from global expert ids itself.
        varies: why a token's bits may depend on its batch or the run; None where the kernel can be told to keep them.
    """

    name: str
    method: str | None
    majors: frozenset[int]
    reason: str | None = None
    offered: bool = False
    global_ids: bool = False
    varies: str | None = None

    @property
    def why_not(self) -> str | None:
        """Why it cannot run on SM120 and SM121; None if it can."""
        if self.reason is not None or SM12X in self.majors:
            return self.reason
        return f"its kernels are built for {' and '.join(f'SM{m}0' for m in sorted(self.majors))} only"


# Why the bits of others vary.
_TUNED = "its tiles follow the number of tokens"
_SPLIT = "it splits K by the number of tokens"
_ATOMICS = f"{_SPLIT}, and on SM90 adds with atomics"


def _kernel(
    name: str, method: str | None, *majors: int, offered: bool = False, global_ids: bool = False,
    varies: str | None = _TUNED,
) -> Kernel:  # fmt: skip
    return Kernel(name, method, frozenset(majors), offered=offered, global_ids=global_ids, varies=varies)


def _none(reason: str, *runners: str) -> dict[str, Kernel]:
    return dict.fromkeys(runners, Kernel("", None, frozenset(), reason))


_TRTLLM_NVFP4 = _kernel("FlashInfer TRT-LLM NVFP4", NVFP4_METHOD, 10)
_TRTLLM_MXFP4 = _kernel("FlashInfer TRT-LLM MXFP4", "Mxfp4FlashinferTrtllmMoEMethod", 10)
_TRTLLM_FP8 = _kernel("FlashInfer TRT-LLM FP8", FP8_METHOD, 10)
# SGLang gives it one configuration for all batches with --enable-deterministic-inference.
_TRITON_FP8 = _kernel("Triton block FP8", FP8_METHOD, 9, 10, 12, offered=True, varies=None)
_DEEP_GEMM = _kernel("DeepGEMM", FP8_METHOD, 9, 10, 12)  # reads block FP8
_DEEP_GEMM_FP4 = replace(_DEEP_GEMM, offered=True)  # packed FP4 too, on SM120 in releases that have that
_SGL_TRTLLM, _MEGAMOE = _kernel("SGLang TRT-LLM", None, 10), _kernel("FlashInfer MegaMoE", None, 10)

# Ours: made for SM12x and run on an H200 too (docs/E2E.md), where SGLANG_SM120_ASSUME routes to them.
_NVFP4: dict[str, Kernel] = {
    RUNNER: _kernel(f"Triton NVFP4 ({RUNNER})", OUR_NVFP4_METHOD, 9, 12, offered=True, varies=None),
    "flashinfer_cutlass": _kernel("FlashInfer CUTLASS NVFP4", NVFP4_METHOD, 10, 12, offered=True, global_ids=True),
    "marlin": _kernel("Marlin NVFP4 (W4A16)", NVFP4_METHOD, 8, 9, 10, 12, offered=True, varies=_ATOMICS),
    "flashinfer_trtllm": _TRTLLM_NVFP4,
    "flashinfer_trtllm_routed": _TRTLLM_NVFP4,
    "flashinfer_cutedsl": _kernel("FlashInfer CuteDSL NVFP4", NVFP4_METHOD, 10),
    "experimental_sgl_trtllm": _SGL_TRTLLM,
    "flashinfer_megamoe": _MEGAMOE,
    **_none(
        "SGLang's NVFP4 method has no such kernel",
        "cutlass",
        "triton",
        "triton_kernel",
        "deep_gemm",
        "humming",
        "flashinfer_mxfp4",
        "hpc_ops",
        "aiter",
    ),
}
_MXFP4: dict[str, Kernel] = {
    "flashinfer_mxfp4": _kernel(
        "FlashInfer CUTLASS MXFP4", "Mxfp4FlashinferCutlassMoEMethod", 9, 12, offered=True, global_ids=True
    ),
    "marlin": _kernel("Marlin MXFP4 (W4A16)", "Mxfp4MarlinMoEMethod", 9, 12, offered=True, varies=_SPLIT),
    RUNNER: _kernel(f"Triton MXFP4 ({RUNNER})", METHOD, 9, 12, offered=True, varies=None),
    "humming": _kernel("Humming MXFP4", "Mxfp4HummingMoEMethod", 9, 10, 12),
    "deep_gemm": _DEEP_GEMM_FP4,
    "flashinfer_trtllm": _TRTLLM_MXFP4,
    "flashinfer_trtllm_routed": _TRTLLM_MXFP4,
    "flashinfer_cutedsl": _kernel("FlashInfer CuteDSL", None, 10),
    "experimental_sgl_trtllm": _SGL_TRTLLM,
    "flashinfer_megamoe": _MEGAMOE,
    **_none(
        NOT_MXFP4,
        "flashinfer_cutlass",
        "cutlass",
        "triton",
        "triton_kernel",
        "hpc_ops",
    ),
    **_none("its kernels are AMD's", "aiter"),
}
_FP8: dict[str, Kernel] = {
    "triton": _TRITON_FP8,
    "auto": _TRITON_FP8,
    "deep_gemm": _DEEP_GEMM,
    "flashinfer_trtllm": _TRTLLM_FP8,
    "flashinfer_trtllm_routed": _TRTLLM_FP8,
    **_none("SGLang's FP8 method has no such kernel", "flashinfer_mxfp4", "marlin", "humming", "triton_kernel"),
    **_none("it reads NVFP4 and MXFP4, and this checkpoint's experts are FP8", RUNNER),
}
_BY_FORMAT: dict[Format, dict[str, Kernel]] = {"nvfp4": _NVFP4, "mxfp4": _MXFP4, "fp8": _FP8}
# (format of the experts, value of SGLang's runner flag) -> kernel; in the order in which runners are offered.
KERNELS: dict[tuple[Format, str], Kernel] = {
    (experts, runner): kernel for experts, runners in _BY_FORMAT.items() for runner, kernel in runners.items()
}


def why_not(experts: Format, runner: str | None) -> str | None:
    """Why a runner cannot run experts of a format on SM120; None if it can, or if this table does not know it."""
    kernel = KERNELS.get((experts, runner or ""))
    return kernel.why_not if kernel else None


def refused(experts: Format) -> dict[str, str]:
    """Runner -> why it cannot run experts of a format on SM120."""
    return {runner: kernel.why_not for runner, kernel in _BY_FORMAT[experts].items() if kernel.why_not}


def offered(experts: Format) -> tuple[str, ...]:
    """The runners to name for experts of a format when another one is refused; `auto` is not asked for by name."""
    return tuple(r for r, kernel in _BY_FORMAT[experts].items() if kernel.offered and r != "auto")


def keeps_global_ids(runner: str) -> bool:
    """Whether a runner takes global expert ids, whatever it runs."""
    return any(kernel.global_ids for (_, name), kernel in KERNELS.items() if name == runner)


def methods(experts: Format) -> frozenset[str]:
    """The classes of methods that read experts of a format."""
    return frozenset(kernel.method for kernel in _BY_FORMAT[experts].values() if kernel.method)


def implements(method: str, runner: str) -> bool:
    """Whether a method has a kernel, for any GPU, behind a runner."""
    return any(kernel.method == method for (_, name), kernel in KERNELS.items() if name == runner)


def lookup(method: str, runner: str | None) -> Kernel | None:
    """The kernel behind a method on a runner; None if this table does not know it.

    A method with one kernel has it on every runner: SGLang chooses MXFP4's methods by GPU too, not by runner alone.
    """
    behind = {runner: kernel for (_, runner), kernel in KERNELS.items() if kernel.method == method}
    kernels = set(behind.values())
    return kernels.pop() if len(kernels) == 1 else behind.get(runner or "")


def fault(method: str, runner: str | None, major: int, packed: bool) -> str | None:
    """Why the kernel cannot run a layer, None if it can as far as this table knows.

    Args:
        method, runner: what SGLang gave the layer.
        major: major compute capability of the GPU.
        packed: the experts are packed FP4.
    """
    kernel = lookup(method, runner)
    if kernel is None:
        if method == FP8_METHOD and packed:
            return f"{method} on {runner} does not read packed FP4 experts"
        return None
    reads = _MXFP4.get(runner or "")
    if packed and kernel in _FP8.values() and (reads is None or reads.method != kernel.method):
        return f"{kernel.name} would read the packed FP4 bytes as FP8"
    if major not in kernel.majors:
        have = ", ".join(f"SM{m}x" for m in sorted(kernel.majors))
        return f"{kernel.name} has kernels for {have} only"
    return None
