"""What is wrong with a MoE layer that SGLang has built, beyond the architectures of its kernel. For `plan`."""

from __future__ import annotations

from sglang_sm120.moe import known_kernels
from sglang_sm120.moe.known_kernels import FP8_METHOD, NVFP4_METHOD, NVFP4_MULTIPLE
from sglang_sm120.patching import replace
from sglang_sm120.upstream import features, server_flags
from sglang_sm120.upstream.protocols import MoeLayer


def of(layer: MoeLayer) -> list[str]:
    """Why a built FusedMoE would fail or compute something else than its checkpoint says, as far as it shows."""
    method, config = layer.quant_method, layer.moe_runner_config
    kind, runner = type(method).__name__, getattr(method, "runner", None)
    faults = []
    if kind == FP8_METHOD and runner is None and not _runs_without_runner():
        faults.append(f"SGLang's FP8 method has no kernel for the runner {server_flags.global_runner()}")
    packed = getattr(layer.quant_config, "is_fp4_experts", False)
    if kind == FP8_METHOD and server_flags.global_runner() == "deep_gemm" and packed and not _deep_gemm_reads_fp4():
        faults.append("this SGLang's DeepGEMM reads packed FP4 experts on SM100 only")
    if kind != NVFP4_METHOD:
        return faults
    if server_flags.global_runner() != "auto" and not known_kernels.implements(kind, server_flags.global_runner()):
        faults.append(f"SGLang's NVFP4 method has no kernel for the runner {server_flags.global_runner()}")
    clamped = features.passes_nvfp4_clamp() or _is_patched(type(method), "apply")
    if server_flags.global_runner() == "flashinfer_cutlass" and config.swiglu_limit is not None and not clamped:
        faults.append(
            f"flashinfer_cutlass would run without the clamp at {config.swiglu_limit}, so answers would be wrong"
        )
    width = layer.intermediate_size_per_partition
    if server_flags.global_runner() in ("flashinfer_cutlass", "marlin") and width % NVFP4_MULTIPLE:
        faults.append(
            f"{server_flags.global_runner()} needs multiples of {NVFP4_MULTIPLE} columns of an NVFP4 expert, and a "
            f"rank has {width}; --ep-size equal to --tp leaves experts whole"
        )
    scales = getattr(getattr(runner, "config", None), "routed_scaling_factor", None) not in (None, 1.0)
    if server_flags.global_runner() == "marlin" and scales and layer.should_fuse_routed_scaling_factor_in_topk:
        faults.append("marlin would apply routed_scaling_factor twice, so answers would be wrong")
    return faults


def _runs_without_runner() -> bool:
    """Of the runners that SGLang's FP8 method calls directly, cutlass is the one that NVIDIA GPUs have."""
    return server_flags.global_runner() == "cutlass"


def _deep_gemm_reads_fp4() -> bool:
    import torch

    return torch.cuda.get_device_capability()[0] != known_kernels.SM12X or features.has_deep_gemm_fp4()


def _is_patched(cls: type, name: str) -> bool:
    return hasattr(cls.__dict__.get(name), replace.MARK)
