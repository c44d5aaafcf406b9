"""Names of the kernels behind SGLang's MoE methods, and the architectures that have them.

From SGLang's dispatch and the kernels' own build lists; used to judge a plan, not to make a decision.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_sm120.settings import RUNNER


@dataclass(frozen=True)
class Kernel:
    """A kernel family.

    Attributes:
        name: for people.
        majors: major compute capabilities that have it.
        reads_packed_fp4: whether it takes MXFP4 bytes.
    """

    name: str
    majors: frozenset[int]
    reads_packed_fp4: bool = True


def _kernel(name: str, *majors: int, reads_packed_fp4: bool = True) -> Kernel:
    return Kernel(name, frozenset(majors), reads_packed_fp4)


_TRTLLM_NVFP4 = _kernel("FlashInfer TRT-LLM NVFP4", 10)
_KNOWN: dict[tuple[str, str | None], Kernel] = {
    ("ModelOptNvFp4FusedMoEMethod", "flashinfer_trtllm"): _TRTLLM_NVFP4,
    ("ModelOptNvFp4FusedMoEMethod", "flashinfer_trtllm_routed"): _TRTLLM_NVFP4,
    ("ModelOptNvFp4FusedMoEMethod", "flashinfer_cutedsl"): _kernel("FlashInfer CuteDSL NVFP4", 10),
    ("ModelOptNvFp4FusedMoEMethod", "flashinfer_cutlass"): _kernel("FlashInfer CUTLASS NVFP4", 10, 12),
    ("ModelOptNvFp4FusedMoEMethod", "marlin"): _kernel("Marlin NVFP4 (W4A16)", 8, 9, 10, 12),
    ("Mxfp4FlashinferTrtllmMoEMethod", None): _kernel("FlashInfer TRT-LLM MXFP4", 10),
    ("Mxfp4FlashinferCutlassMoEMethod", None): _kernel("FlashInfer CUTLASS MXFP4", 9, 12),
    ("Mxfp4MarlinMoEMethod", None): _kernel("Marlin MXFP4 (W4A16)", 9, 12),
    ("Mxfp4HummingMoEMethod", None): _kernel("Humming MXFP4", 9, 10, 12),
    # Made for SM12x and run on an H200 too (docs/E2E.md), where SGLANG_SM120_ASSUME routes to it.
    ("Sm120Mxfp4MoEMethod", None): _kernel(f"Triton MXFP4 ({RUNNER})", 9, 12),
    ("Fp8MoEMethod", "auto"): _kernel("Triton block FP8", 9, 10, 12, reads_packed_fp4=False),
    ("Fp8MoEMethod", "triton"): _kernel("Triton block FP8", 9, 10, 12, reads_packed_fp4=False),
    ("Fp8MoEMethod", "deep_gemm"): _kernel("DeepGEMM", 9, 10, 12),
    ("Fp8MoEMethod", "flashinfer_trtllm"): _kernel("FlashInfer TRT-LLM FP8", 10, reads_packed_fp4=False),
    ("Fp8MoEMethod", "flashinfer_trtllm_routed"): _kernel("FlashInfer TRT-LLM FP8", 10, reads_packed_fp4=False),
}


def lookup(method: str, runner: str | None) -> Kernel | None:
    """The kernel behind a method on a runner; None if this table does not know it."""
    return _KNOWN.get((method, None)) or _KNOWN.get((method, runner))


def fault(method: str, runner: str | None, major: int, packed: bool) -> str | None:
    """Why the kernel cannot run a layer, None if it can as far as this table knows."""
    kernel = lookup(method, runner)
    if kernel is None:
        if method == "Fp8MoEMethod" and packed:
            return f"{method} on {runner} does not read packed FP4 experts"
        return None
    if packed and not kernel.reads_packed_fp4:
        return f"{kernel.name} would read the packed FP4 bytes as FP8"
    if major not in kernel.majors:
        have = ", ".join(f"SM{m}x" for m in sorted(kernel.majors))
        return f"{kernel.name} has kernels for {have} only"
    return None
