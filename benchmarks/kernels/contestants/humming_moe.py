"""humming (humming-kernels), a just-in-time compiled quantised GEMM, in SGLang's MoE runner for it."""

from __future__ import annotations

import torch
from workload import Case, Weights

from .common import CLAMP, Call, Shared


class Humming:
    """SGLang's Humming runner on MXFP4 weights with bf16 activations, in its default form ("indexed" GEMMs).

    A call is alignment, product, clamped SwiGLU, product and weighted sum, as SGLang launches them.
    """

    def __init__(self, weights: Weights, shared: Shared) -> None:
        from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
        from sglang.srt.layers.moe.moe_runner.humming import HummingMoeQuantInfo, HummingRunnerCore
        from sglang.srt.layers.quantization.humming_utils import prepare_humming_moe_layer

        w13, s13, w2, s2 = (t.clone() for t in weights)  # humming repacks in place where it can
        experts, rows, half = w13.shape
        layer = torch.nn.Module()
        for name, tensor in (
            ("w13_weight", w13),
            ("w13_weight_scale", s13.view(torch.float8_e8m0fnu)),
            ("w2_weight", w2),
            ("w2_weight_scale", s2.view(torch.float8_e8m0fnu)),
        ):
            layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        layer.num_local_experts, layer.hidden_size = experts, 2 * half
        layer.intermediate_size_per_partition, layer.params_dtype = rows // 2, torch.bfloat16
        layer.with_bias, layer.layer_name = False, "experts"
        prepare_humming_moe_layer(layer, {"quant_method": "mxfp4"})
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
