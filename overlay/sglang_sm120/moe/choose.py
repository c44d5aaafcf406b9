"""The MoE method of a layer, once its runner is known."""

from __future__ import annotations

from typing import Any

from sglang_sm120.moe import decisions
from sglang_sm120.moe.decisions import Decision
from sglang_sm120.settings import ACTIVATION, RUNNER, Settings
from sglang_sm120.upstream import features, server_flags


def mxfp4_method(config: Any, prefix: str, runner: str, patch: str, reason: str, settings: Settings) -> Any:
    """The MoE method that runs a layer's MXFP4 experts on a runner, with the decision recorded.

    Args:
        config: the checkpoint's Fp8Config, or the hybrid one derived from it.
        prefix: module name of the layer.
        runner: `marlin`, `flashinfer_mxfp4` (where SM120 has it), or anything else for ours.
        patch: who decides.
        reason: why, where resolution has not said it in this process.
    """
    method: Any
    if runner == "marlin":
        from sglang.srt.layers.quantization.fp8 import Fp8MoEMethod
        from sglang.srt.layers.quantization.mxfp4_marlin_moe import Mxfp4MarlinMoEMethod

        method = Mxfp4MarlinMoEMethod(Fp8MoEMethod(config), prefix=prefix)
    elif runner == "flashinfer_mxfp4" and features.has_cutlass_mxfp4():
        from sglang.srt.layers.quantization.fp8 import Fp8MoEMethod
        from sglang.srt.layers.quantization.mxfp4_flashinfer_cutlass_moe import Mxfp4FlashinferCutlassMoEMethod

        method = Mxfp4FlashinferCutlassMoEMethod(Fp8MoEMethod(config), prefix=prefix)
    else:
        from sglang_sm120.moe.mxfp4_method import Sm120Mxfp4MoEMethod

        kept = _batch_invariant(settings)
        runner, method = RUNNER, Sm120Mxfp4MoEMethod(prefix, settings.activation, batch_invariant=kept)
    return _recorded(method, prefix, runner, patch, reason)


def nvfp4_method(prefix: str, patch: str, reason: str, settings: Settings) -> Any:
    """Our MoE method for a layer's NVFP4 experts, with the decision recorded; arguments as for `mxfp4_method`."""
    from sglang_sm120.moe.nvfp4_method import Sm120Nvfp4MoEMethod

    if settings.activation != "bf16":
        said = f"{ACTIVATION.name}={settings.activation} applies to MXFP4 layers; NVFP4 ones keep bf16 activations"
        decisions.once(("nvfp4", "activation"), said)
    known = decisions.decision(server_flags.role(prefix))
    patch = (known.changed_by if known and known.runner == RUNNER else None) or patch
    method = Sm120Nvfp4MoEMethod(prefix, batch_invariant=_batch_invariant(settings))
    return _recorded(method, prefix, RUNNER, patch, reason)


def _batch_invariant(settings: Settings) -> bool:
    """Whether a token's bits must not depend on its batch: asked of us, or of SGLang."""
    return settings.batch_invariant or server_flags.runs_deterministically()


def _recorded(method: Any, prefix: str, runner: str, patch: str, reason: str) -> Any:
    role = server_flags.role(prefix)
    known = decisions.decision(role)
    reason = known.reason if known and known.runner == runner else reason
    decisions.decide("dispatch", Decision(role, runner, patch, reason))
    kept = ", batch-invariant" if getattr(method, "batch_invariant", False) else ""
    decisions.once((role, runner), f"MoE {role}: {type(method).__name__} ({runner}{kept}) for {prefix}")
    return method
