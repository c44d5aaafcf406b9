"""SGLang's Marlin MoE for MXFP4 weights, and what it shares with the one for NVFP4."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch
from workload import Case, Weights

from .common import CLAMP, Call, Shared, pad_intermediate


class FusedMarlin:
    """`fused_marlin_moe` as SGLang's methods call it: alignment, two products, clamp and SiLU, sum.

    A subclass prepares `self.layer` from these parameters, and names in `globals` what else its format's call has.
    """

    globals: Mapping[str, str] = types.MappingProxyType({})  # argument -> parameter

    def __init__(self, experts: int, parameters: dict[str, torch.Tensor]) -> None:
        from sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe import fused_marlin_moe

        self.moe, self.experts = fused_marlin_moe, experts
        self.layer: Any = torch.nn.Module()
        for name, tensor in parameters.items():
            self.layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))

    def call(self, case: Case) -> Call:
        x, ids, probabilities = case
        w, logits = self.layer, x.new_empty(x.shape[0], self.experts)  # the logits' shape is checked, nothing else
        more = {argument: getattr(w, name) for argument, name in self.globals.items()}

        def run() -> torch.Tensor:
            return self.moe(
                hidden_states=x, w1=w.w13_weight, w2=w.w2_weight, w1_scale=w.w13_weight_scale,
                w2_scale=w.w2_weight_scale, gating_output=logits, topk_weights=probabilities, topk_ids=ids,
                workspace=w.workspace, num_bits=4, is_k_full=True, inplace=False, clamp_limit=CLAMP,
                activation="silu", is_gated=True, **more,
            )  # fmt: skip

        return run


class Marlin(FusedMarlin):
    """SGLang's MXFP4 Marlin method rounds the intermediate size up to a multiple of 128, and so does this one."""

    def __init__(self, weights: Weights, shared: Shared) -> None:
        from sglang.srt.layers.quantization.marlin_utils_fp4 import prepare_moe_mxfp4_layer_for_marlin

        w13, s13, w2, s2 = pad_intermediate(weights, 128)
        parameters = {
            "w13_weight": w13.view(torch.int8), "w13_weight_scale_inv": s13.view(torch.float8_e8m0fnu),
            "w2_weight": w2.view(torch.int8), "w2_weight_scale_inv": s2.view(torch.float8_e8m0fnu),
        }  # fmt: skip
        super().__init__(len(w13), parameters)
        prepare_moe_mxfp4_layer_for_marlin(self.layer)
