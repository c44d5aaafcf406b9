"""Which layers and runners `tune` measures, and how the process of one is started."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from sglang_sm120 import gpu
from sglang_sm120.checkpoint import format, headers_only, inspection
from sglang_sm120.checkpoint.shares import expert_ranks
from sglang_sm120.commands.isolated import Isolated
from sglang_sm120.commands.tune.requests import LayerRequest
from sglang_sm120.kernels.sm120.tile_tables import Shape
from sglang_sm120.moe import known_kernels
from sglang_sm120.moe.runner_tables import Layer
from sglang_sm120.settings import ASSUME, AUTO, BATCH_INVARIANT, DRAFT_MOE, RUNNER, TARGET_MOE
from sglang_sm120.upstream import features
from sglang_sm120.upstream.server_flags import Role

_FLAGS: dict[Role, tuple[str, str]] = {
    "target": ("--moe-runner-backend", TARGET_MOE.name),
    "draft": ("--speculative-moe-runner-backend", DRAFT_MOE.name),
}
CHILD = ("-m", "sglang_sm120.commands.one_runner.child")
_KINDS = {"nvfp4": "hybrid-nvfp4", "mxfp4": "mxfp4"}  # of a checkpoint whose target has such experts


@dataclass(frozen=True)
class Job:
    """A layer to measure, and where SGLang reads about it: a directory (None: one is written) and a role in it."""

    layer: Layer
    model: Path | None = None
    role: Role = "target"


def layer_of(shape: Shape, tp: int, ep: int) -> Layer:
    """The layer of a shape, which has a rank's experts and columns."""
    return Layer(shape.format, shape.experts * ep, shape.hidden, shape.inter, shape.top_k, tp, ep)


def candidates(layer: Layer, major: int, named: Sequence[str] = ()) -> list[str]:
    """Runners to try: those named, or all with a kernel for this GPU and format, the quickest to start first."""
    known = [
        runner
        for (experts, runner), kernel in known_kernels.KERNELS.items()
        if experts == layer.format and kernel.method and major in kernel.majors and runner != "auto"
    ]
    return list(named) or sorted(known, key=lambda r: (r != RUNNER, r != "marlin", r))


def runner_words(role: Role, runner: str) -> tuple[list[str], dict[str, str]]:
    """Flags and environment variables that ask for a runner, in the words that the installed SGLang takes."""
    flag, variable = _FLAGS[role]
    named = runner != RUNNER or features.takes_runner_names()
    return ([flag, runner], {}) if named else ([], {variable: runner})


@contextmanager
def directory(job: Job) -> Iterator[Path]:
    """The job's model directory; without one a configuration and headers of the layer's shape, for a while."""
    if job.model is not None:
        yield job.model
        return
    layer = job.layer
    shape = replace(
        format.Shape(kind=_KINDS[layer.format], layers=1),
        experts=layer.experts,
        hidden=layer.hidden,
        intermediate=layer.inter * expert_ranks(layer.tp, layer.ep),
        top_k=layer.top_k,
    )
    with TemporaryDirectory(prefix="sglang-sm120-tune-") as made:
        yield headers_only.write_shape(Path(made), shape)


def starter(
    job: Job, model: Path, here: gpu.Gpu, logs: Path, command: Sequence[str] = ()
) -> Callable[[str], tuple[Isolated, str]]:
    """What starts the process of a runner for a job.

    Args:
        model: the job's directory.
        here: this machine's GPU. On one that is no SM12x the overlay acts for our runner only, and for a hybrid
            checkpoint's draft; there SGLang's own runners are stock.
        logs: directory for what the processes say.
        command: the program; the child of `one_runner` if none is given.
    """
    program = list(command) or [sys.executable, *CHILD]

    def start(runner: str) -> tuple[Isolated, str]:
        flags, variables = runner_words(job.role, runner)
        request = LayerRequest(str(model), job.role, runner, job.layer.tp, job.layer.ep, flags=tuple(flags))
        # A launch that wants batch-invariant experts takes our runner anyhow; the table is for the others.
        unset = (TARGET_MOE.name, DRAFT_MOE.name, BATCH_INVARIANT.name)
        environment = {k: v for k, v in os.environ.items() if k not in unset}
        environment |= {AUTO.name: "fixed"} | variables
        if not here.is_sm12x and (runner == RUNNER or job.role == "draft"):
            environment.setdefault(ASSUME.name, "sm120")
        name = f"{job.layer.format}-{job.layer.tp}-{runner}.log"
        return Isolated(program, environment, logs / name), request.line()

    return start


def target_is_fp8(model: Path) -> bool:
    """Whether only the draft's experts are FP4."""
    return inspection.read(model).checkpoint.kind == "fp8"


def draft_is_apart(model: Path) -> bool:
    """Whether the draft's layer cannot be built as EAGLE's from the checkpoint: it is DSpark's, or none is there."""
    return any(expert_counts(model).values()) or bool(inspection.read(model).draft_problems("EAGLE"))


def expert_counts(model: Path) -> dict[str, int | None]:
    """What `config.json` says of a DSpark draft's own experts and top-k, None where it is the target's."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    names = ("dspark_n_routed_experts", "dspark_num_experts_per_tok")
    return {name: text.get(name) if type(text.get(name)) is int else None for name in names}
