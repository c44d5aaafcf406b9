"""Let SGLang read the experts of target and draft each in the format that they have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from sglang_sm120.checkpoint import first_expert
from sglang_sm120.checkpoint.headers import CheckpointError
from sglang_sm120.moe.launch_files import DRAFT_FORMAT
from sglang_sm120.patches.targets import LOADER_STEP
from sglang_sm120.patching import on_import, replace
from sglang_sm120.patching.records import Patch
from sglang_sm120.settings import Settings
from sglang_sm120.upstream import releases, server_flags
from sglang_sm120.upstream.contracts import Target

NAME = DRAFT_FORMAT
_CONFIGS, _LOOK = "sglang.srt.configs.deepseek_v4", "try_detect_fp4_experts"


def install(settings: Settings) -> str:
    """Replace SGLang's look at a checkpoint, and set the draft's answer where its configuration is made."""
    on_import.when_imported(_CONFIGS, lambda module: replace.replace(module, _LOOK, NAME, _of_target))
    on_import.when_imported(LOADER_STEP.module, _wrap_loader)
    return "target and draft are each looked at"


def _wrap_loader(module: ModuleType) -> None:
    """Others may have wrapped the step before, and `still_reached` does so after."""
    present: Any = getattr(module, LOADER_STEP.qualname)
    behind = present
    while behind is not None:
        if getattr(behind, replace.MARK, None) == NAME:
            return
        behind = getattr(behind, "__wrapped__", None)
    made = replace.put(module, LOADER_STEP.qualname, NAME, _of_draft(present))
    replace.record(module, LOADER_STEP.qualname, NAME, made)


def _of_target(original: FunctionType) -> Callable[..., Any]:
    def try_detect_fp4_experts(model_path: str) -> bool | None:
        packed = _packed(model_path, draft=False)
        return original(model_path) if packed is None else packed

    return try_detect_fp4_experts


def _of_draft(original: Callable[..., Any]) -> Callable[..., Any]:
    def _get_quantization_config(model_config: Any, *args: Any, **kwargs: Any) -> Any:
        if model_config.is_draft_model and server_flags.looks_at_experts(model_config):
            packed = _packed(model_config.model_path, draft=True)
            if packed is not None:
                model_config.is_fp4_experts = packed
        return original(model_config, *args, **kwargs)

    return _get_quantization_config


def _packed(model_path: str, draft: bool) -> bool | None:
    """Whether the experts are packed FP4; None where that is SGLang's to say: no directory, no such expert, or damage.

    Damage of a checkpoint of DeepSeek-V4 has stopped the launch before.
    """
    directory = Path(model_path)
    if not directory.is_dir():
        return None
    try:
        kind = first_expert.kind(directory, draft)
    except CheckpointError:
        return None
    return kind in ("mxfp4", "hybrid-nvfp4") if kind in ("mxfp4", "hybrid-nvfp4", "fp8") else None


PATCH = Patch(
    name=NAME,
    summary="an FP8 target with an MXFP4 draft, or the reverse: each is read in its own format",
    symptom=(
        "weights of the draft, or of the target, have the wrong shape while they load, after SGLang has found the "
        "layout of one expert: `Auto-detected DSV4 routed-expert layout`"
    ),
    targets=(
        Target(_CONFIGS, _LOOK, releases.spans({"0.5.14": "3cee64169031"})),
        LOADER_STEP,
    ),
    why="SGLang takes the format of all experts off the first one in the index, be it the draft's; no flag says it",
    binding=(
        "`ModelConfig` imports `try_detect_fp4_experts` where it calls it; SGLang's loader calls the function that "
        "makes a model's quantization configuration by its name in the module"
    ),
    untouched="checkpoints whose experts all have one format; `SGLANG_DSV4_FP4_EXPERTS`, which overrides the detection",
    remove_when="upstream looks at `mtp.*` for a draft, and at nothing else for it",
    install=install,
)
