"""humming (humming-kernels), a just-in-time compiled quantised GEMM, in SGLang's MoE runner for it."""

from __future__ import annotations

import torch
from workload import Case, Weights

from .common import CLAMP, Call, Shared


class Humming:
    """SGLang's Humming runner with bf16 activations, in its default form ("indexed" GEMMs).

    A call is alignment, product, clamped SwiGLU, product and weighted sum, as SGLang launches them.
    """

    def __init__(self, weights: Weights, shared: Shared) -> None:
        from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
        from sglang.srt.layers.moe.moe_runner.humming import HummingMoeQuantInfo, HummingRunnerCore
        from sglang.srt.layers.quantization.humming_utils import prepare_humming_moe_layer

        given = [t.clone() for t in weights]  # humming repacks in place where it can
        names = ["w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale"]
        scale, config = torch.float8_e8m0fnu, {"quant_method": "mxfp4"}
        if len(given) == 6:
            names = [*names[:2], "w13_weight_scale_2", *names[2:], "w2_weight_scale_2"]
            scale, config = torch.float8_e4m3fn, {"quant_method": "modelopt", "quant_algo": "NVFP4"}
        experts, rows, half = given[0].shape
        layer = torch.nn.Module()
        for name, tensor in zip(names, given, strict=True):
            if name.endswith("_scale"):
                tensor = tensor.view(scale)
            layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        layer.num_local_experts, layer.hidden_size = experts, 2 * half
        layer.intermediate_size_per_partition, layer.params_dtype = rows // 2, torch.bfloat16
        layer.with_bias, layer.layer_name = False, "experts"
        prepare_humming_moe_layer(layer, config)
        self.info = HummingMoeQuantInfo(layer=layer)
        self.core = HummingRunnerCore(
            MoeRunnerConfig(
                num_experts=experts, num_local_experts=experts, hidden_size=2 * half,
                intermediate_size_per_partition=rows // 2, activation="silu", swiglu_limit=CLAMP,
            )
        )  # fmt: skip

    def call(self, case: Case) -> Call:
        from humming.config import GemmType
        from sglang.srt.layers.moe.moe_runner.humming import HummingRunnerInput

        x, ids, probabilities = case
        kind = GemmType.INDEXED

        def run() -> torch.Tensor:
            asked = HummingRunnerInput(hidden_states=x, topk_weights=probabilities, topk_ids=ids, gemm_type=kind)
            return self.core.run(asked, self.info, {}).hidden_states

        return run
