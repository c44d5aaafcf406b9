"""SGLang's Marlin MXFP4 MoE."""

from __future__ import annotations

import torch
from workload import Case, Weights

from .common import CLAMP, Call, Shared, pad_intermediate


class Marlin:
    """`fused_marlin_moe` as SGLang's MXFP4 Marlin method calls it: alignment, two products, clamp and SiLU, sum.

    That method rounds the intermediate size up to a multiple of 128, and so does this one.
    """

    def __init__(self, weights: Weights, shared: Shared) -> None:
        from sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe import fused_marlin_moe
        from sglang.srt.layers.quantization.marlin_utils_fp4 import prepare_moe_mxfp4_layer_for_marlin

        self.moe, self.experts = fused_marlin_moe, weights[0].shape[0]
        w13, s13, w2, s2 = pad_intermediate(weights, 128)
        layer = torch.nn.Module()
        for name, tensor in (
            ("w13_weight", w13.view(torch.int8)),
            ("w13_weight_scale_inv", s13.view(torch.float8_e8m0fnu)),
            ("w2_weight", w2.view(torch.int8)),
            ("w2_weight_scale_inv", s2.view(torch.float8_e8m0fnu)),
        ):
            layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        prepare_moe_mxfp4_layer_for_marlin(layer)
        self.layer = layer

    def call(self, case: Case) -> Call:
        x, ids, probabilities = case
        w, logits = self.layer, x.new_empty(x.shape[0], self.experts)  # the logits' shape is checked, nothing else

        def run() -> torch.Tensor:
            return self.moe(
                hidden_states=x, w1=w.w13_weight, w2=w.w2_weight, w1_scale=w.w13_weight_scale,
                w2_scale=w.w2_weight_scale, gating_output=logits, topk_weights=probabilities, topk_ids=ids,
                workspace=w.workspace, num_bits=4, is_k_full=True, inplace=False, clamp_limit=CLAMP,
                activation="silu", is_gated=True,
            )  # fmt: skip

        return run
