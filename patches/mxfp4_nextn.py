"""Give the layers of a hybrid checkpoint, MXFP4 draft and NVFP4 target, methods that have kernels for SM120."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from sglang_sm120.moe import decisions, known_kernels, runners, stock
from sglang_sm120.moe import launch as launch_of
from sglang_sm120.moe.choose import mxfp4_method, nvfp4_method
from sglang_sm120.patches.targets import EXPERT_LOADER, LOADER_STEP, METHOD_BASE
from sglang_sm120.patching import on_import, replace, still_reached
from sglang_sm120.patching.records import Patch
from sglang_sm120.settings import RUNNER, Settings
from sglang_sm120.upstream import built_layers, releases, server_flags
from sglang_sm120.upstream.contracts import Target

NAME = "mxfp4_nextn"
_MODULE = "sglang.srt.layers.quantization.modelopt_quant"
_MOE = "sglang.srt.layers.moe"


def install(settings: Settings) -> str:
    """Replace one method, now or when SGLang imports the module, and have it looked after."""

    def _replace(module: ModuleType) -> None:
        replace.replace(
            module.HybridFp8NvFp4Config, "get_quant_method", NAME, lambda original: _wrap(original, settings)
        )

    done = on_import.when_imported(_MODULE, _replace)
    still_reached.watch()
    return "HybridFp8NvFp4Config.get_quant_method" + ("" if done else " as soon as SGLang imports it")


def _wrap(original: FunctionType, settings: Settings) -> Callable[..., Any]:
    def get_quant_method(self: Any, layer: Any, prefix: str) -> Any:
        if not built_layers.is_fused_moe(layer):
            return original(self, layer, prefix)
        decisions.once("summary", decisions.summary())
        # SGLang 0.5.16 has DSpark and does not exclude its `stages.*`, which are MXFP4 like every draft's experts.
        if not (self.nvfp4_config.is_layer_excluded(prefix) or server_flags.is_draft_prefix(prefix)):
            # Ours without a look at upstream's method, which refuses to be made on some GPUs.
            if server_flags.layer_runner(prefix) == RUNNER:
                return nvfp4_method(prefix, NAME, f"{RUNNER} was asked for", settings)
            return _target(original(self, layer, prefix) if _target_runs(prefix) else None)
        if not self.is_fp4_experts:
            return original(self, layer, prefix)
        return _draft(self, prefix, settings)

    return get_quant_method


def _target_runs(prefix: str) -> bool:
    """Stop a layer that is about to get kernels for SM100 only.

    The gate has seen to this wherever plugins were loaded before the flags were resolved. A program that resolves them
    first (`run_server(args)` without `load_plugins()`) gets here.
    """
    runner = server_flags.layer_runner(prefix)
    reason = known_kernels.why_not("nvfp4", runner)
    if reason is None:
        return True
    works = launch_of.flag_values("nvfp4")
    raise SystemExit(
        f"sglang-sm120: {prefix} would run on {runner}: {reason}. Pass {runners.TARGET_FLAG} {works}; if "
        "deepseek_v4_gate is in SGLANG_SM120_DISABLE take it out; a program "
        "that starts SGLang itself must call sglang.srt.plugins.load_plugins() before it resolves its arguments"
    )


def _target(method: Any) -> Any:
    decisions.once("target", f"MoE target: {type(method).__name__} (NVFP4)")
    return method


def _draft(config: Any, prefix: str, settings: Settings) -> Any:
    runner = server_flags.layer_runner(prefix)
    if not server_flags.is_draft_prefix(prefix):
        runner = RUNNER  # an excluded target layer: the target's runner reads NVFP4
    return mxfp4_method(config, prefix, runner, NAME, f"MXFP4 experts of a hybrid checkpoint ({prefix})", settings)


PATCH = Patch(
    name=NAME,
    summary=(
        f"the MXFP4 draft of a hybrid checkpoint runs on `{RUNNER}`, or on the runner that its flag names; its NVFP4 "
        f"target gets the method of `{RUNNER}` where that is its runner"
    ),
    symptom=(
        "the draft's first forward dies in `Mxfp4FlashinferTrtllmMoEMethod.apply` "
        "(`trtllm_fp4_block_scale_routed_moe`), whatever `--speculative-moe-runner-backend` says"
    ),
    targets=(
        Target(_MODULE, "HybridFp8NvFp4Config.get_quant_method", releases.spans({"0.5.14": "8af8902d04d2"})),
        METHOD_BASE,
        LOADER_STEP,
        *EXPERT_LOADER,
        Target(f"{_MOE}.fused_moe_triton.layer", "FusedMoE.run_moe_core", releases.spans({"0.5.14": "60b109b1f358"})),
        Target(
            f"{_MOE}.token_dispatcher.standard",
            "StandardDispatcher",
            releases.spans(
                {
                    "0.5.14": "6d078f26de58",
                    "0.5.16": "c49b728fcdf0",
                    "0.5.17": "471ed220e2c1",
                    "0.5.20": "8932ad89802a",
                    "0.5.21": "1c0f7039efe2",
                    "0.5.23": "5e3564069be4",
                }
            ),
        ),
    ),
    why="the method returns the TRT-LLM MXFP4 method unconditionally; it asks neither a flag nor a registry",
    binding="a class attribute: SGLang calls `quant_config.get_quant_method(layer, prefix)` for each layer it builds",
    untouched=f"linear layers, NVFP4 target layers on other runners than `{RUNNER}`, drafts that are not FP4",
    remove_when="upstream's `HybridFp8NvFp4Config.get_quant_method` has another method for `model.decoder.*` on SM120",
    install=install,
    mended=lambda: stock.mended_layer("draft"),
)
