"""`sglang-sm120 tune` as it is typed: the runners of each layer, then our kernel's tiles in the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sglang_sm120.commands.progress import bar
from sglang_sm120.commands.tune import command, jobs, runner_text, runners
from sglang_sm120.commands.tune.jobs import Job
from sglang_sm120.kernels.sm120.tile_tables import Shape
from sglang_sm120.upstream.server_flags import Role

PARTS = ("runners", "tiles")
LEAST = 0.1  # minutes that tiles are worth starting for


def jobs_of(shapes: Sequence[Shape], model: Path | None, tp: int, ep: int) -> list[Job]:
    """The layers to measure: those of the checkpoint, as SGLang builds them, and the other shapes."""
    found: list[Job] = []
    of_model = command.shapes_of(model, tp, ep) if model else []
    apart = model is not None and jobs.draft_is_apart(model)
    first_draft = 0 if model is not None and jobs.target_is_fp8(model) else 1
    for number, shape in enumerate([*of_model, *shapes]):
        drafts = number >= first_draft
        own = number < len(of_model) and not (drafts and apart)
        role: Role = "draft" if own and drafts else "target"
        job = Job(jobs.layer_of(shape, tp, ep), model if own else None, role)
        if job.layer not in [j.layer for j in found]:
            found.append(job)
    return found


def run(arguments: Any, shapes: Sequence[Shape], say: Callable[[str], None]) -> dict[str, Any]:
    """Measure what was asked for.

    Raises:
        TuneError, ValueError: nothing can be measured here.
    """
    until = time.monotonic() + 60 * arguments.minutes
    document: dict[str, Any] = {"errors": []}
    if arguments.only != "tiles":
        wanted = jobs_of(shapes, arguments.model_path, arguments.tp, arguments.ep)
        out = None if arguments.only is None else arguments.out
        with bar() as shown:
            document = runners.run(wanted, arguments.minutes, arguments.runners or (), out, shown)
        if arguments.only == "runners":
            return document
    left = (until - time.monotonic()) / 60
    if arguments.only is None and left < LEAST:
        return document
    every = [
        *(command.shapes_of(arguments.model_path, arguments.tp, arguments.ep) if arguments.model_path else []),
        *shapes,
    ]
    tiles = command.run(every, arguments.tokens, left, arguments.routing, arguments.out, say)
    if arguments.only:
        return tiles
    return tiles | {"runners": document, "errors": [*document["errors"], *tiles["errors"]]}


def check(arguments: Any, shapes: Sequence[Shape]) -> dict[str, Any]:
    """Which tables a launch here would use."""
    every = [
        *(command.shapes_of(arguments.model_path, arguments.tp, arguments.ep) if arguments.model_path else []),
        *shapes,
    ]
    if arguments.only == "tiles":
        return command.check(every)
    layers = [jobs.layer_of(shape, arguments.tp, arguments.ep) for shape in every]
    found = runners.check(layers)
    if arguments.only == "runners":
        return found
    tiles = command.check(every)
    return tiles | {"runners": found, "errors": [*found["errors"], *tiles["errors"]]}


def render(document: dict[str, Any]) -> str:
    """Runners, then tiles, whichever are there."""
    if document.get("kind", "").startswith("runners"):
        return runner_text.render(document)
    first = document.get("runners")
    said = first["errors"] if first else []
    text = command.render(document | {"errors": [e for e in document["errors"] if e not in said]})
    return f"{runner_text.render(first)}\n\n{text}" if first else text


def pictures(document: dict[str, Any]) -> dict[str, str]:
    """Name of a layer -> chart of its runners; none of tiles."""
    measured = document if document.get("kind") == "runners" else document.get("runners")
    return runner_text.pictures(measured) if measured else {}
