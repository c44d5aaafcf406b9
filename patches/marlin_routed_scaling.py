"""Apply the routed scaling factor once when NVFP4 experts run on Marlin; SGLang 0.5.14 to 0.5.16 apply it twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from sglang_sm120.patching import on_import, replace
from sglang_sm120.patching.records import Patch, Status
from sglang_sm120.settings import Settings
from sglang_sm120.upstream import releases
from sglang_sm120.upstream.contracts import Target

NAME = "marlin_routed_scaling"
_QUANT = "sglang.srt.layers.quantization.modelopt_quant"
_CLASS = "ModelOptNvFp4FusedMoEMethod"
_MOE = "sglang.srt.layers.moe"
_HYBRID_MARK = "model.decoder.*"  # SGLang's loader adds it to the exclusions of hybrid checkpoints, and of no others


def install(_settings: Settings) -> str:
    """Replace one method, now or when SGLang imports the module."""
    on_import.when_imported(_QUANT, _wrap_method)
    return f"{_CLASS} on marlin leaves the routed scaling to top-k"


def _wrap_method(module: ModuleType) -> None:
    def wrap(original: FunctionType) -> Callable[..., Any]:
        def create_moe_runner(self: Any, layer: Any, moe_runner_config: Any) -> None:
            original(self, layer, moe_runner_config)
            # Top-k multiplies for every NVFP4 layer of the hybrid checkpoint (the layer says so in
            # should_fuse_routed_scaling_factor_in_topk); Marlin's reduction would do so again. The models of
            # other checkpoints may not ask top-k to, so they stay.
            if _HYBRID_MARK in (self.quant_config.exclude_modules or ()) and self._moe_runner_backend.is_marlin():
                self.runner.config = dataclasses.replace(self.runner.config, routed_scaling_factor=None)

        return create_moe_runner

    replace.replace(getattr(module, _CLASS), "create_moe_runner", NAME, wrap)


PATCH = Patch(
    name=NAME,
    summary="hybrid FP8+NVFP4 targets on Marlin apply the routed scaling factor once (SGLang 0.5.14 to 0.5.16)",
    symptom=(
        "none that is visible: with `--moe-runner-backend marlin` the routed experts' output is too large by the "
        "checkpoint's `routed_scaling_factor`"
    ),
    targets=(
        Target(
            _QUANT,
            f"{_CLASS}.create_moe_runner",
            releases.spans(
                {"0.5.14": "13f2da77ca3e", "0.5.15": "247896d990c6", "0.5.16": "da5a680a9470", "0.5.17": None}
            ),
        ),
        Target(
            f"{_MOE}.fused_moe_triton.layer",
            "FusedMoE.__init__",
            releases.spans(
                {"0.5.14": "7fbc64f35f2e", "0.5.15": "fe49778cebce", "0.5.16": "d694c1f0aead", "0.5.17": None}
            ),
        ),
        Target(
            f"{_MOE}.moe_runner.marlin",
            "fused_experts_none_to_marlin",
            releases.spans({"0.5.14": "be237e0ca1ce", "0.5.16": "57031a661b07", "0.5.17": None}),
        ),
        Target(
            f"{_MOE}.fused_moe_triton.fused_marlin_moe",
            "fused_marlin_moe",
            releases.spans({"0.5.14": "b72e2fa0b5ef", "0.5.16": "690a954b1187", "0.5.17": None}),
        ),
    ),
    why=(
        "whether top-k scales is decided by the method's class; no flag reaches it. Not choosing Marlin would leave "
        "`--moe-runner-backend marlin`, expert-parallel sizes between 1 and tp, and `--quantization fp8` with no runner"
    ),
    binding="a class attribute; the runner keeps the configuration that it is given when it is made",
    untouched="other runners, MXFP4 experts on Marlin (their reduction does not scale), checkpoints not hybrid",
    remove_when="support for SGLang 0.5.16 ends",
    install=install,
    proven_on=releases.span("0.5.14", "0.5.16"),
    elsewhere=(Status.NOT_NEEDED, "this SGLang keeps the scaling out of top-k for Marlin"),
)
