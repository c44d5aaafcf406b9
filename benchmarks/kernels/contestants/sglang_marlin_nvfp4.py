"""SGLang's Marlin MoE for NVFP4 weights."""

from __future__ import annotations

import types

import torch
from workload import Weights

from .common import Shared
from .sglang_marlin import FusedMarlin


class MarlinNvfp4(FusedMarlin):
    """Like SGLang's ModelOpt NVFP4 method it takes the gate's global scale for the up half too, rounded to bf16."""

    globals = types.MappingProxyType({"w1_global_scale": "w13_weight_scale_2", "w2_global_scale": "w2_weight_scale_2"})

    def __init__(self, weights: Weights, shared: Shared) -> None:
        from sglang.srt.layers.quantization.marlin_utils_fp4 import prepare_moe_nvfp4_layer_for_marlin

        w13, s13, g13, w2, s2, g2 = weights
        parameters = {
            "w13_weight": w13, "w13_weight_scale": s13.view(torch.float8_e4m3fn),
            "w13_weight_scale_2": g13[:, 0].contiguous(),
            "w2_weight": w2, "w2_weight_scale": s2.view(torch.float8_e4m3fn), "w2_weight_scale_2": g2,
        }  # fmt: skip
        super().__init__(len(w13), parameters)
        self.layer.quant_config = types.SimpleNamespace(group_size=16)
        self.layer.moe_runner_config = types.SimpleNamespace(is_gated=True)
        self.layer.intermediate_size_per_partition, self.layer.params_dtype = w13.shape[1] // 2, torch.bfloat16
        prepare_moe_nvfp4_layer_for_marlin(self.layer)
