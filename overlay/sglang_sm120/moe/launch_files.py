"""The checkpoints that a launch reads from this machine's disk: the target's, and the draft's, which may be another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sglang_sm120.checkpoint import inspection
from sglang_sm120.checkpoint.expert_formats import Kind
from sglang_sm120.checkpoint.inspection import Inspected

DRAFT_FORMAT = "draft_format"  # the patch with which SGLang looks at the draft's own experts


@dataclass(frozen=True)
class Files:
    """What was found.

    Attributes:
        target: None where the model is no local directory, or loads no weights.
        draft: the same of the draft; the target's where they share a directory. None without speculative decoding.
        draft_path: its directory.
    """

    target: Inspected | None = None
    draft: Inspected | None = None
    draft_path: str | None = None

    def draft_problems(self, algorithm: str, reads: Kind | None = None) -> list[str]:
        """What keeps the launch from drafting, each with the directory; arguments as for `drafts.problems`."""
        found = self.draft.draft_problems(algorithm, reads) if self.draft else []
        return [f"{self.draft_path}: {problem}" for problem in found]


def of_draft(target: Inspected | None, model_path: str, algorithm: str | None, draft_path: str | None) -> Files:
    """The files of a launch whose target has been read.

    Args:
        target: of the directory `model_path`; None where it is not read.
        algorithm: the speculative one; None without.
        draft_path: `--speculative-draft-model-path`; None is the target's.

    Raises:
        CheckpointError: the draft's directory cannot be read.
    """
    if not algorithm:
        return Files(target)
    if draft_path is None or Path(draft_path) == Path(model_path):
        return Files(target, target, model_path)
    return Files(target, inspection.read(Path(draft_path)) if Path(draft_path).is_dir() else None, draft_path)


def read_draft_as(target: Inspected, states: Mapping[str, str]) -> Kind | None:
    """The format in which SGLang reads the draft's experts; None where it looks at them.

    Args:
        target: SGLang looks at its experts otherwise.
        states: of the patches, by name.
    """
    if states.get(DRAFT_FORMAT) == "applied" or target.checkpoint.kind == "other":
        return None
    return "fp8" if target.checkpoint.kind == "fp8" else "mxfp4"
