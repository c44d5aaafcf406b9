"""`sglang-sm120 tune`, its runners' part: jobs measured one after another into the table that launches read."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_sm120 import __version__, files, gpu
from sglang_sm120.commands.tune import contest, jobs
from sglang_sm120.commands.tune.jobs import Job
from sglang_sm120.kernels.sm120 import tile_tables
from sglang_sm120.moe import runner_tables
from sglang_sm120.moe.runner_tables import EQUAL_SCALES, Layer, Place
from sglang_sm120.settings import RUNNER
from sglang_sm120.upstream import releases

BITS = {"mxfp4": 4.25, "nvfp4": 4.5}  # of a weight with its share of the scales
FAULTS = (EQUAL_SCALES, "unsteady", "wrong", "failed", "crashed")
LOGS = "tune-logs"  # beside the table: what the processes of runners said last
_PACKAGES = ("torch", "triton", "flashinfer-python", "sglang-kernel")


class RunnersError(ValueError):
    """Nothing can be measured here; the message says why in one line."""


Progress = Callable[[str, float, float], None]  # what is running, share done, seconds left


def place() -> tuple[Place, gpu.Gpu] | str:
    """For what a table made here would hold, with the GPU; or in one line why none can be made."""
    here, sglang = gpu.detect(), releases.installed()
    if here is None:
        return "tune measures, so it needs a CUDA GPU, and none is usable here"
    if sglang is None:
        return "tune measures the runners of SGLang, and SGLang is not installed here"
    return Place(here.name, releases.base(sglang)), here


def begun(path: Path, here: Place, own: bool) -> dict[str, Any]:
    """The document to go on with: the file's, where it holds here, else a new one.

    Args:
        own: the file is ours, and is replaced where it is no table that holds here; another one is refused.

    Raises:
        RunnersError: it is not ours.
    """
    try:
        held, document = runner_tables.load(path)
        difference = held.difference(here)
        if difference is None:
            runner_tables.rows_of(document)
            return document
        raise ValueError(difference)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        if not own:
            raise RunnersError(f"--out {path} is there, and is not a table to go on with: {error}") from error
    versions = {name: releases.installed(name) for name in _PACKAGES}
    head = {"schema": runner_tables.SCHEMA, "kind": "runners", **asdict(here)}
    return head | {"versions": {"python": platform.python_version(), **versions}, "layers": []}


def run(
    wanted: Sequence[Job],
    minutes: float,
    named: Sequence[str] = (),
    out: Path | None = None,
    progress: Progress = lambda text, share, left: None,
    command: Sequence[str] = (),
    where: tuple[Place, gpu.Gpu] | None = None,
    counts: Sequence[int] = contest.ORDER,
) -> dict[str, Any]:
    """Measure until done or out of time; what is there is kept, and written after each step.

    Args:
        wanted: layers, in the order in which they are measured.
        minutes: at most this long.
        named: runners to try; all that this GPU has kernels for, if none are named.
        out: the file; where launches look for it, if None.
        progress: gets what is running.
        command: stands for the process of a runner (tests).
        where: for what the table holds; found out if None.
        counts: numbers of tokens to time.

    Raises:
        RunnersError: nothing can be measured here.
        OSError: the file cannot be written.
    """
    found = where or place()
    if isinstance(found, str):
        raise RunnersError(found)
    here, card = found
    path = out or runner_tables.path_for(here)
    logs = path.parent / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    document, until = begun(path, here, out is None), time.monotonic() + 60 * minutes
    document["capability"] = list(card.capability)
    document |= {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": _command()}
    complete = True
    for number, job in enumerate(wanted):
        entry = _entry(document, job.layer)

        def save(rows: list[dict[str, Any]], entry: dict[str, Any] = entry) -> None:
            entry["runners"] = rows
            files.write_whole(path, json.dumps(document, indent=1) + "\n")

        def say(text: str, share: float, job: Job = job, number: int = number) -> None:
            progress(f"{job.layer}, {text}", (number + share) / len(wanted), until - time.monotonic())

        with jobs.directory(job) as model:
            start = jobs.starter(job, model, card, logs, command)
            done = contest.Contest(start, until, save, say, counts, bandwidth=document.get("copy_bytes_per_s"))
            runners = jobs.candidates(job.layer, card.capability[0], named)
            try:
                complete &= done.run(runners, entry["runners"])
            finally:
                document["copy_bytes_per_s"] = done.bandwidth
                _add_floor(entry, done.bandwidth)
                save(entry["runners"])
    return document | {"table": str(path), "complete": complete, "errors": _ours(document)}


def _ours(document: dict[str, Any]) -> list[str]:
    """What our own kernel did wrong: a fault to report, whatever the others did."""
    return [
        f"{RUNNER} is {row['status']} for {runner_tables.layer_of(entry)}: {row['why']}; please report this"
        for entry in document["layers"]
        for row in entry["runners"]
        if row["runner"] == RUNNER and row["status"] in FAULTS
    ]


def _command() -> list[str]:
    """As it was typed, paths by their last part."""
    return ["sglang-sm120", *(Path(word).name if "/" in word else word for word in sys.argv[1:])]


def _entry(document: dict[str, Any], layer: Layer) -> dict[str, Any]:
    """The layer's entry in the document, made where there is none."""
    entry: dict[str, Any]
    for entry in document["layers"]:
        if runner_tables.layer_of(entry) == layer:
            return entry
    entry = asdict(layer) | {"runners": []}
    document["layers"].append(entry)
    return entry


def _add_floor(entry: dict[str, Any], bandwidth: float | None) -> None:
    """Microseconds that the bytes of a call take at the copy bandwidth: experts hit, input and output."""
    if not bandwidth:
        return
    hit: dict[str, float] = {}
    for row in entry["runners"]:
        hit |= row.get("hit", {})
    layer = runner_tables.layer_of(entry)
    expert = 3 * layer.hidden * layer.inter * BITS[layer.format] / 8
    entry["floor"] = [
        {"tokens": int(t), "us": (n * expert + 4 * int(t) * layer.hidden) / bandwidth * 1e6}
        for t, n in sorted(hit.items(), key=lambda pair: int(pair[0]))
    ]


def check(layers: Sequence[Layer] = ()) -> dict[str, Any]:
    """The table that launches here would follow, and the layers of these that it lacks."""
    document: dict[str, Any] = {"schema": runner_tables.SCHEMA, "kind": "runners-check", "overlay": __version__}
    document |= {"table": None, "used": False, "problem": None, "layers": [], "missing": [], "errors": []}
    found = place()
    if isinstance(found, str):
        return document | {"problem": "no table of runners is used: " + found}
    here, _ = found
    try:
        path = runner_tables.path_for(here)
        document["table"] = str(path)
        held, table = runner_tables.load(path)
        difference = held.difference(here)
        if difference:
            raise ValueError(difference)
        rows = runner_tables.rows_of(table)
    except FileNotFoundError:
        return document | {"problem": "there is no table of runners for this GPU and SGLang; `auto` is fixed"}
    except tile_tables.NoHomeError as error:
        return document | {"problem": str(error)}
    except (OSError, ValueError) as error:
        return document | {"errors": [f"launches ignore the table of runners: {error}"]}
    document |= {"used": bool(rows), "layers": table["layers"]}
    return document | {"missing": [str(layer) for layer in layers if layer not in rows]}
