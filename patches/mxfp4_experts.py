"""Let `sm120_triton` run the experts of native MXFP4 checkpoints, target and draft."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from sglang_sm120.moe import decisions, known_kernels, runners
from sglang_sm120.moe import launch as launch_of
from sglang_sm120.moe.choose import mxfp4_method
from sglang_sm120.patches.targets import LOADER_STEP, METHOD_BASE
from sglang_sm120.patching import on_import, replace, still_reached
from sglang_sm120.patching.records import Patch
from sglang_sm120.settings import RUNNER, Settings
from sglang_sm120.upstream import built_layers, releases, server_flags
from sglang_sm120.upstream.contracts import Target

NAME = "mxfp4_experts"
_MODULE = "sglang.srt.layers.quantization.fp8"


def install(settings: Settings) -> str:
    """Replace one method, now or when SGLang imports the module, and have it looked after."""

    def _replace(module: ModuleType) -> None:
        replace.replace(module.Fp8Config, "get_quant_method", NAME, lambda original: _wrap(original, module, settings))

    done = on_import.when_imported(_MODULE, _replace)
    still_reached.watch()
    return "Fp8Config.get_quant_method" + ("" if done else " as soon as SGLang imports it")


def _wrap(original: FunctionType, module: ModuleType, settings: Settings) -> Callable[..., Any]:
    def get_quant_method(self: Any, layer: Any, prefix: str) -> Any:
        method = original(self, layer, prefix)
        packed = self.is_fp4_experts and not getattr(self, "dequant_fp4_to_fp8", False)
        # Under DSpark SGLang looks at the target's runner, whatever the draft's flag says, so our runner may have been
        # asked for although SGLang chose another method. Ignored layers are unquantized.
        reads_packed = type(method).__name__ in known_kernels.methods("mxfp4")
        if not packed or not built_layers.is_fused_moe(layer) or not reads_packed:
            return method
        decisions.once("summary", decisions.summary())
        runner = server_flags.layer_runner(prefix)
        role = server_flags.role(prefix)
        reason = known_kernels.why_not("mxfp4", runner)
        if reason is not None and isinstance(method, module.Fp8MoEMethod):
            flag = runners.DRAFT_FLAG if role == "draft" else runners.TARGET_FLAG
            raise SystemExit(
                f"sglang-sm120: {prefix} holds MXFP4 experts and would run on {runner}: {reason}. "
                f"Pass {flag} {launch_of.flag_values('mxfp4')}"
            )
        # EAGLE has swapped the runner, so SGLang has done what the flag says, unless it says ours.
        ignored = (
            role == "draft" and runner in ("marlin", "flashinfer_mxfp4") and runner != server_flags.global_runner()
        )
        if runner != RUNNER and not ignored:
            return method
        return mxfp4_method(self, prefix, runner, NAME, f"{runner} was asked for", settings)

    return get_quant_method


PATCH = Patch(
    name=NAME,
    summary=f"`{RUNNER}` runs native MXFP4 experts where asked to, or where FlashInfer refuses the shard's shape",
    symptom=(
        "`Mxfp4FlashinferCutlassMoEMethod requires hidden_size and intermediate_size_per_partition to be multiples of "
        "128` (V4.1-Flash at TP4 and TP8, V4-Pro at TP16), or `Hidden size mismatch` with a runner that reads FP8"
    ),
    targets=(
        Target(
            _MODULE,
            "Fp8Config.get_quant_method",
            releases.spans(
                {
                    "0.5.14": "6d9f46709d1c",
                    "0.5.15": "2f603df46447",
                    "0.5.16": "ffa4b31ad998",
                    "0.5.17": "b9076fc10a9d",
                    "0.5.19": "59f0f219129a",
                    "0.5.20": "86db095c76c3",
                    "0.5.21": "c83182fbb4f3",
                }
            ),
        ),
        METHOD_BASE,
        LOADER_STEP,
    ),
    why="the method is chosen in a chain of built-in runner names; a registered name falls through to the FP8 method",
    binding="a class attribute: SGLang calls `quant_config.get_quant_method(layer, prefix)` for each layer it builds",
    untouched="every layer that SGLang gives the runner its flag names; under DSpark SGLang ignores the draft's flag",
    remove_when="upstream asks a registry for the MoE method of a registered runner name",
    install=install,
)
