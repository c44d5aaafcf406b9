"""What the checkpoints of a launch have against it, where nobody else has asked them. For `plan`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sglang_sm120.checkpoint import inspection
from sglang_sm120.commands.plan.flag_values import Flags
from sglang_sm120.moe import launch_files


def of(model: str, flags: Flags, states: Mapping[str, str]) -> list[str]:
    """Why SGLang would misread target or draft, beyond the target's own faults, which `plan` has told.

    Args:
        model: checkpoint directory.
        flags: as SGLang resolved them.
        states: of the patches, by name; `deepseek_v4_gate` asks the same and has let the launch pass where it acts.
    """
    if states.get("deepseek_v4_gate") == "applied" or flags("load_format") == "dummy":
        return []
    algorithm = flags("speculative_algorithm")
    try:
        target = inspection.read(Path(model))
        files = launch_files.of_draft(target, model, algorithm, flags("speculative_draft_model_path"))
    except inspection.CheckpointError as error:
        return [str(error)]
    reads_draft = flags("speculative_draft_load_format") != "dummy"
    return files.problems(algorithm if reads_draft else None, states)
