"""What several patches share: upstream code that they rely on, and the method of an MXFP4 layer."""

from __future__ import annotations

from typing import Any

from sglang_sm120 import features, reach, releases, report, sglang_api
from sglang_sm120.contracts import Target
from sglang_sm120.report import Decision
from sglang_sm120.settings import RUNNER, Settings

# The class that our MoE method derives from.
METHOD_BASE = Target(
    "sglang.srt.layers.quantization.base_config",
    "FusedMoEMethodBase",
    releases.spans({"0.5.14": "55a3295e33f2", "0.5.19": "e0674847c231", "0.5.23": "412d2b682788"}),
)

# The loader's step at which `reach` looks once more whether SGLang still gets to the patches.
LOADER_STEP = Target(
    reach.LOADER,
    reach.CONFIGURES,
    releases.spans(
        {
            "0.5.14": "61381a6b77b2",
            "0.5.15": "1634aa3c03c4",
            "0.5.16": "170e4c8abfbd",
            "0.5.17": "f814e0cd45b7",
            "0.5.18": "4fada9ce7a05",
            "0.5.20": "b89ae432f84a",
        }
    ),
)


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
        from sglang_sm120.moe_method import Sm120Mxfp4MoEMethod

        runner, method = RUNNER, Sm120Mxfp4MoEMethod(prefix, settings.activation)
    role = "draft" if sglang_api.is_draft_prefix(prefix) else "target"
    known = report.decision(role)
    reason = known.reason if known and known.runner == runner else reason
    report.decide("dispatch", Decision(role, runner, patch, reason))
    report.once((role, runner), f"MoE {role}: {type(method).__name__} ({runner}) for {prefix}")
    return method
