"""What the installed SGLang has, read from its source: how eras are told apart. Imports nothing of it.

Each answer holds for the process; SGLang does not change under it.
"""

from __future__ import annotations

from functools import cache

from sglang_sm120.upstream import contracts

_MOE = "sglang.srt.layers.moe"


@cache
def takes_runner_names() -> bool:
    """Whether the runner flags accept registered names (SGLang 0.5.19 and later)."""
    return contracts.find(f"{_MOE}.utils", "register_moe_runner_backend_name") is not None


@cache
def has_cutlass_mxfp4() -> bool:
    """Whether SGLang's FlashInfer CUTLASS MXFP4 method has SM120's activations (SGLang 0.5.16 and later)."""
    runner = f"{_MOE}.moe_runner.flashinfer_cutlass"
    return contracts.has_field(runner, "FlashInferCutlassMxfp4MoeQuantInfo", "mxfp4_weight_global_scale")


@cache
def has_deep_gemm_fp4() -> bool:
    """Whether SGLang's DeepGEMM runner reads packed FP4 experts on SM120 (SGLang 0.5.20 and later)."""
    return contracts.has_module(f"{_MOE}.moe_runner.deep_gemm_sm120")


@cache
def passes_nvfp4_clamp() -> bool:
    """Whether SGLang hands `swiglu_limit` to FlashInfer's NVFP4 CUTLASS kernel (SGLang 0.5.21 and later)."""
    runner = f"{_MOE}.moe_runner.flashinfer_cutlass"
    return contracts.has_field(runner, "FlashInferCutlassMoeQuantInfo", "swiglu_limit")


@cache
def default_reads_fp4_only() -> bool:
    """Whether `auto` on SM120 is a runner for FP4 experts whatever the checkpoint holds (SGLang 0.5.14 to 0.5.18).

    marlin up to 0.5.15, flashinfer_mxfp4 from 0.5.16; both leave block-FP8 experts without a runner.
    """
    overrides = "sglang.srt.arg_groups.overrides"
    return not contracts.has_module(overrides) or contracts.find(overrides, "_deepseek_v4_sm120_moe") is not None


@cache
def numbers_experts_per_layer() -> bool:
    """Whether the dispatcher asks each layer's method which expert ids it wants (SGLang 0.5.23 and later)."""
    return contracts.find(f"{_MOE}.token_dispatcher.standard", "_keeps_global_expert_ids") is not None


@cache
def has_weight_sessions() -> bool:
    """Whether updates by tensor or broadcast have a begin and an end (SGLang 0.5.21 and later)."""
    updater = "sglang.srt.model_executor.model_runner_components.weight_updater"
    return contracts.find(updater, "WeightUpdater.begin_weight_update") is not None
