"""Give DeepSeek-V4's target a MoE runner that has kernels for SM120."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang_sm120 import checkpoint, report, routing, sglang_api
from sglang_sm120.contracts import Target
from sglang_sm120.patching import Patch
from sglang_sm120.report import Decision
from sglang_sm120.settings import Settings

NAME = "deepseek_v4_gate"
DRAFT_PATCH = "mxfp4_nextn"  # makes the draft's layer what is resolved here
ARCHITECTURE = "DeepseekV4ForCausalLM"
_installed = False


def install(settings: Settings) -> str:
    """Register a provider after upstream's, so that ours wins, and a check after resolution."""
    global _installed
    from sglang.srt.arg_groups.overrides import register_model_override
    from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook

    if not _installed:
        register_model_override(ARCHITECTURE)(_provider(settings))
        register_resolution_hook("handle_speculative_decoding")(_check)
        _installed = True
    return f"decides when {ARCHITECTURE} is resolved"


def _provider(settings: Settings) -> Callable[[Any, Any], dict[str, str]]:
    def sm120_moe_runners(server_args: Any, _hf_config: Any) -> dict[str, str]:
        view = sglang_api.resolving(server_args)
        if view.device != "cuda":
            return {}
        _refuse_damaged(view)
        launch = sglang_api.launch_facts(server_args, settings.draft_runner)
        try:
            declared = _declare("moe_runner_backend", "target", NAME, routing.route_target(launch))
            if launch.speculative is not None and DRAFT_PATCH not in settings.disabled:
                draft = routing.route_draft(launch)
                declared |= _declare("speculative_moe_runner_backend", "draft", DRAFT_PATCH, draft)
                _refuse_unpatched_schedulers(view, draft)
        except routing.RouteError as error:
            raise SystemExit(f"sglang-sm120: {error}") from error
        return declared

    return sm120_moe_runners


def _declare(field: str, role: str, patch: str, route: routing.Route) -> dict[str, str]:
    report.decide("resolution", Decision(role, route.runner, route.runner and patch, route.reason))
    return {} if route.runner is None else {field: route.runner}


def _refuse_damaged(view: Any) -> None:
    """Stop before SGLang reads experts in a format that they do not have."""
    directory = Path(view.model_path)
    if view.load_format == "dummy" or not directory.is_dir():
        return
    try:
        problems = checkpoint.inspect(directory).problems
    except checkpoint.CheckpointError as error:
        raise SystemExit(f"sglang-sm120: {error}") from error
    if problems:
        raise SystemExit(f"sglang-sm120: {directory}: {'; '.join(problems)}")


def _refuse_unpatched_schedulers(view: Any, draft: routing.Route) -> None:
    """Ray actors and the weight-cache daemon build models without loading plugins: the draft would be stock."""
    if draft.runner is None:
        return
    for flag, used in (("--use-ray", view.use_ray), ("--weight-cache-mode", view.weight_cache_mode != "off")):
        if used:
            raise SystemExit(
                f"sglang-sm120: with {flag} SGLang builds the draft in processes that load no plugins, so it would get "
                f"kernels that SM120 does not have; leave {flag} out, or leave out speculative decoding"
            )


def _check(server_args: Any, previous: Callable[[Any], None]) -> None:
    """After resolution: nobody may have put an SM100-only runner back."""
    previous(server_args)
    view = sglang_api.resolving(server_args)
    if view.device != "cuda" or sglang_api.target_kind(server_args) != "hybrid-nvfp4":
        return
    reason = routing.NVFP4_REFUSED.get(view.moe_runner_backend)
    if reason is not None:
        raise SystemExit(
            f"sglang-sm120: {routing.TARGET_FLAG} was resolved to {view.moe_runner_backend} after {NAME} had chosen: "
            f"{reason}. Pass {routing.TARGET_FLAG} {routing.NVFP4_WORKING[0]}"
        )


PATCH = Patch(
    name=NAME,
    summary="hybrid FP8+NVFP4 targets run on FlashInfer CUTLASS (or Marlin) instead of trtllm-gen",
    symptom=(
        "`trtllm_fp4_block_scale_routed_moe` fails at the first forward: the resolved arguments say "
        "`moe_runner_backend='flashinfer_trtllm_routed'`, whose kernels exist for SM100 only"
    ),
    targets=(
        Target(
            "sglang.srt.arg_groups.model_overrides.deepseek_v4", "_deepseek_v4_overrides", {"0.5.23": "e2e4bccbf92d"}
        ),
        Target("sglang.srt.arg_groups.model_override_base", "register_model_override", {"0.5.23": "c6fa4aefd5f0"}),
        Target("sglang.srt.arg_groups.overrides", "collect_model_override_declarations", {"0.5.23": "6a83e17b7da3"}),
        Target("sglang.srt.arg_groups.resolution_hooks", "register_resolution_hook", {"0.5.23": "f0ca0da01f36"}),
    ),
    why=(
        "a registration: upstream's provider sets the runner whenever the checkpoint is hybrid, without a look at the "
        "GPU, and the rule that would save SM120 asks for `quantization == 'modelopt_fp4'`, which such checkpoints lack"
    ),
    binding="providers of one architecture are collected in order of registration and the last one wins",
    untouched="runners that were asked for and work; native MXFP4 checkpoints whose shapes FlashInfer takes; FP8",
    remove_when="upstream's `_deepseek_v4_overrides` gives a hybrid checkpoint on SM120 another runner than trtllm",
    install=install,
)
