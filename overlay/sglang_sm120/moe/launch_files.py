"""The checkpoints that a launch reads from this machine's disk: the target's, and the draft's, which may be another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_sm120.checkpoint import drafts, inspection, shares
from sglang_sm120.checkpoint.expert_formats import CALLED
from sglang_sm120.checkpoint.inspection import Inspected
from sglang_sm120.upstream import server_flags
from sglang_sm120.upstream.protocols import ResolvedFlags

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

    def problems(self, algorithm: str | None, states: Mapping[str, str]) -> list[str]:
        """What keeps SGLang from reading the experts of target and draft, beyond the target's own faults.

        Args:
            algorithm: the speculative one; None where no draft is read.
            states: of the patches, by name.
        """
        looks = states.get(DRAFT_FORMAT) == "applied"
        found = [] if looks or self.target is None else _read_otherwise(self.target)
        if algorithm and self.draft:
            reads = None if looks else self.draft.looked_at
            found += [f"{self.draft_path}: {said}" for said in self.draft.draft_problems(algorithm, reads)]
        return found


def _read_otherwise(target: Inspected) -> list[str]:
    """A target that SGLang takes for what the draft is."""
    kind, reads = target.checkpoint.kind, target.looked_at
    if kind not in ("mxfp4", "fp8") or reads in (None, kind):
        return []
    return [
        f"the target's experts are {CALLED[kind]}, and SGLang would read them as {CALLED[reads]}, the format of "
        f"{target.survey.first}, which comes first in the checkpoint; patch {DRAFT_FORMAT} mends that on SM120"
    ]


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


def read(view: ResolvedFlags, states: Mapping[str, str]) -> tuple[Files, list[str]]:
    """The files of a launch, and what keeps SGLang from reading their experts.

    Args:
        view: the launch's flags.
        states: of the patches, by name.

    Raises:
        CheckpointError: a directory that SGLang would read cannot be read.
    """
    model, algorithm = Path(view.model_path), view.speculative_algorithm
    if view.load_format == "dummy" or not model.is_dir():
        return Files(), []
    target = inspection.read(model)
    files = of_draft(target, view.model_path, algorithm, view.speculative_draft_model_path)
    problems = [f"{model}: {'; '.join(target.checkpoint.problems)}"] if target.checkpoint.problems else []
    reads_draft = getattr(view, "speculative_draft_load_format", None) != "dummy"
    looked = {} if server_flags.format_is_forced() else states  # then nobody looks at the draft
    return files, problems + files.problems(algorithm if reads_draft else None, looked)


def count_problems(view: ResolvedFlags, text: Any) -> list[str]:
    """What SGLang asserts without a text: that ranks share experts evenly, and that there is one NextN layer.

    Args:
        view: the launch's flags.
        text: the model's configuration as SGLang has it, with what flags override.
    """
    ep, redundant = view.ep_size, getattr(view, "ep_num_redundant_experts", None) or 0
    if ep < 1 or view.tp_size % ep:
        return []  # SGLang says that
    algorithm = view.speculative_algorithm
    stages = getattr(text, "dspark_n_routed_experts", None) if algorithm == drafts.DSPARK else None
    draft_experts = (stages or text.n_routed_experts) if algorithm else None
    problems = shares.uneven(text.n_routed_experts, ep, redundant, draft_experts)
    nextn = getattr(text, "num_nextn_predict_layers", 1)
    if algorithm in ("EAGLE", "NEXTN") and view.speculative_draft_model_path in (None, view.model_path) and nextn != 1:
        said = f"num_nextn_predict_layers is {nextn} (config.json, --json-model-override-args)"
        problems.append(f"{said}; SGLang's NextN draft needs 1")
    return problems
