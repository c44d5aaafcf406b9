"""FlashInfer's CUTLASS MoE for SM90 with bf16 activations and MXFP4 weights."""

from __future__ import annotations

import torch
from workload import Case, Weights

from .common import CLAMP, Call, Shared, pad_intermediate

DELAY_US = 1000  # FlashInfer's tuner waits 5000 before each of its 150 candidates a token count


class FlashInferSm90:
    """`cutlass_fused_moe(use_w4_group_scaling=True)` as SGLang's `flashinfer_mxfp4` calls it on Hopper.

    Layout: w13 as [up; gate], codes and scales interleaved by FlashInfer's own functions, scales in groups of 32. Only
    `swiglu_limit` is given: FlashInfer's alpha and beta default to 1 and 0, which leaves
    min(gate, limit) * sigmoid(min(gate, limit)) * clip(up, -limit, limit). The intermediate size is rounded up to a
    multiple of 128, without which the scales cannot be interleaved. Tactics are tuned per token count, as SGLang does.
    """

    def __init__(self, weights: Weights, shared: Shared) -> None:
        from flashinfer.fused_moe import (
            interleave_moe_scales_for_sm90_mixed_gemm,
            interleave_moe_weights_for_sm90_mixed_gemm,
        )
        from flashinfer.jit.fused_moe import gen_cutlass_fused_moe_sm90_module

        module = gen_cutlass_fused_moe_sm90_module()
        if not module.is_compiled:
            raise RuntimeError(f"FlashInfer's module {module.name} is not compiled: {len(module.sources)} sources")
        w13, s13, w2, s2 = pad_intermediate(weights, 128)
        experts, rows, _ = w13.shape

        def up_first(t: torch.Tensor) -> torch.Tensor:
            return t.view(experts, 2, rows // 2, -1).flip(1).reshape(t.shape)

        self.w13 = interleave_moe_weights_for_sm90_mixed_gemm(up_first(w13), "fp4")
        self.w2 = interleave_moe_weights_for_sm90_mixed_gemm(w2, "fp4")
        self.scales = [
            interleave_moe_scales_for_sm90_mixed_gemm(s, group_size=32).view(torch.int32) for s in (up_first(s13), s2)
        ]
        self.limit = torch.full((experts,), CLAMP, dtype=torch.float32, device=w13.device)
        self.tuned: set[int] = set()

    def call(self, case: Case) -> Call:
        from flashinfer.fused_moe import cutlass_fused_moe
        from flashinfer.tllm_enums import ActivationType

        x, ids, probabilities = case
        tokens, out = x.shape[0], torch.empty_like(x)

        def run() -> torch.Tensor:
            cutlass_fused_moe(
                input=x, token_selected_experts=ids, token_final_scales=probabilities, fc1_expert_weights=self.w13,
                fc2_expert_weights=self.w2, output_dtype=x.dtype, quant_scales=self.scales, swiglu_limit=self.limit,
                use_w4_group_scaling=True, activation_type=ActivationType.Swiglu,
                tune_max_num_tokens=1 << (tokens - 1).bit_length(), output=out,
            )  # fmt: skip
            return out

        if tokens not in self.tuned:
            self._tune(tokens, run)
        return run

    def _tune(self, tokens: int, run: Call) -> None:
        from flashinfer.autotuner import AutoTuner, autotune

        tuner = AutoTuner.get()
        tuner.warmup, tuner.repeat, tuner.stream_delay_micro_secs = 1, 5, DELAY_US
        with autotune(True, tuning_buckets=(tokens,)):
            run()
        self.tuned.add(tokens)
