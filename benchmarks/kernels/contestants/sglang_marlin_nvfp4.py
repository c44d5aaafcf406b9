"""SGLang's Marlin NVFP4 MoE."""

from __future__ import annotations

import types

import torch
from workload import Case, Weights

from .common import CLAMP, Call, Shared


class MarlinNvfp4:
    """`fused_marlin_moe` as SGLang's ModelOpt NVFP4 method calls it: alignment, two products, clamp and SiLU, sum.

    Like that method it takes the gate's global scale for the up half too, and rounds it to bf16.
    """

    def __init__(self, weights: Weights, shared: Shared) -> None:
        from sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe import fused_marlin_moe
        from sglang.srt.layers.quantization.marlin_utils_fp4 import prepare_moe_nvfp4_layer_for_marlin

        w13, s13, g13, w2, s2, g2 = weights
        self.moe, self.experts = fused_marlin_moe, w13.shape[0]
        layer = torch.nn.Module()
        for name, tensor in (
            ("w13_weight", w13),
            ("w13_weight_scale", s13.view(torch.float8_e4m3fn)),
            ("w13_weight_scale_2", g13[:, 0].contiguous()),
            ("w2_weight", w2),
            ("w2_weight_scale", s2.view(torch.float8_e4m3fn)),
            ("w2_weight_scale_2", g2),
        ):
            layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        layer.quant_config = types.SimpleNamespace(group_size=16)
        layer.moe_runner_config = types.SimpleNamespace(is_gated=True)
        layer.intermediate_size_per_partition, layer.params_dtype = w13.shape[1] // 2, torch.bfloat16
        prepare_moe_nvfp4_layer_for_marlin(layer)
        self.layer = layer

    def call(self, case: Case) -> Call:
        x, ids, probabilities = case
        w, logits = self.layer, x.new_empty(x.shape[0], self.experts)  # the logits' shape is checked, nothing else

        def run() -> torch.Tensor:
            return self.moe(
                hidden_states=x, w1=w.w13_weight, w2=w.w2_weight, w1_scale=w.w13_weight_scale,
                w2_scale=w.w2_weight_scale, w1_global_scale=w.w13_weight_scale_2, w2_global_scale=w.w2_weight_scale_2,
                gating_output=logits, topk_weights=probabilities, topk_ids=ids, workspace=w.workspace, num_bits=4,
                is_k_full=True, inplace=False, clamp_limit=CLAMP, activation="silu", is_gated=True,
            )  # fmt: skip

        return run
