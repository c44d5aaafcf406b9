"""Files of tiles that `sglang-sm120 tune` measured: where they lie, their form, and for which machine one is.

Imports neither torch nor Triton, so that `doctor` can read them. The kernel reads them through
`kernels.sm120.fp4_moe.tuning`.

    {"schema": 1, "overlay": "0.1.0", "gpu": "…", "sms": 188, "triton": "3.8.0", "entries": [
      {"experts": 256, "hidden": 4096, "inter": 1024, "top_k": 6, "tokens": 4, "routing": "uniform", "us": 40.1,
       "default_us": 43.0, "noise": 0.004, "gate_up": [32, 8, 3, 2, 2], "down": [64, 8, 3, 1, 1]}, …], "kept": [
      {"experts": 256, "hidden": 4096, "inter": 1024, "top_k": 6, "tokens": 8, "routing": "uniform",
       "default_us": 80.2, "noise": 0.004}, …]}

A row may name its weights' `format`; without one they are MXFP4. A tile is rows, tokens, stages, warps, steps a pass of
its loop. An entry serves the token counts above half of its own
up to its own. `kept` are the token counts where no tiles were faster than the default ones by more than the noise.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
HOME = "SGLANG_SM120_HOME"
ROUTINGS = ("uniform", "speculative")
FORMATS = ("mxfp4", "nvfp4")


@dataclass(frozen=True)
class Tile:
    """What a program of a product computes, and how.

    Attributes:
        rows: of the weights.
        tokens: at most, of one expert.
        stages: of its pipeline.
        warps: that share the program.
        superblocks: of 64 columns a step.
        unroll: steps of one pass of its loop (products in bf16 with few tokens only).
    """

    rows: int
    tokens: int
    stages: int = 3
    warps: int = 1
    superblocks: int = 2
    unroll: int = 1


# One warp holds at most 64 x 8 or 32 x 16 sums without spilling registers (scripts/machine_code/report.py).
CANDIDATES: tuple[Tile, ...] = tuple(
    Tile(rows, tokens, stages, warps, unroll=unroll)
    for rows, tokens, warps, unroll in (
        (32, 8, 1, 1), (64, 8, 1, 1), (64, 8, 2, 1), (32, 8, 1, 2), (32, 8, 2, 2), (64, 8, 2, 2), (32, 16, 1, 1),
        (64, 16, 2, 1), (64, 32, 2, 1),
    )
    for stages in (2, 3, 4)
)  # fmt: skip
_SHAPE = ("experts", "hidden", "inter", "top_k")


class NoHomeError(OSError):
    """There is no home directory to keep files in; the message names the variables to set."""

    def __init__(self) -> None:
        super().__init__(f"there is no home directory: HOME is unset; set it, or {HOME}")


@dataclass(frozen=True)
class Shape:
    """Routed experts of one rank, and the format of their weights (one of FORMATS)."""

    experts: int
    hidden: int
    inter: int
    top_k: int
    format: str = field(default="mxfp4", kw_only=True)

    def __str__(self) -> str:
        numbers = f"{self.experts},{self.hidden},{self.inter},{self.top_k}"
        return numbers if self.format == "mxfp4" else f"{numbers},{self.format}"


@dataclass(frozen=True)
class Machine:
    """What a table is measured for.

    Attributes:
        gpu: product name.
        sms: its multiprocessors.
        triton: release that compiled the kernels.
    """

    gpu: str
    sms: int
    triton: str

    @property
    def file_name(self) -> str:
        name = re.sub(r"[^a-z0-9.]+", "-", self.gpu.lower())
        return f"tiles-{name}-{self.sms}-triton{self.triton}.json"

    def difference(self, here: Machine) -> str | None:
        """`it is for gpu 'A', this is 'B'`; None if there is none."""
        for name in ("gpu", "sms", "triton"):
            theirs, ours = getattr(self, name), getattr(here, name)
            if theirs != ours:
                return f"it is for {name} {theirs!r}, this is {ours!r}"
        return None


Entries = dict[tuple[Shape, int], tuple[Tile, Tile]]


@dataclass(frozen=True)
class Table:
    """A file's content, checked. `entries` and `kept` are its rows as they stand there."""

    machine: Machine
    entries: tuple[dict[str, Any], ...] = ()
    kept: tuple[dict[str, Any], ...] = ()

    def tiles(self) -> Entries:
        """(shape, tokens) -> tiles of the two products."""
        return {(shape_of(e), e["tokens"]): (tile_of(e["gate_up"]), tile_of(e["down"])) for e in self.entries}


def home() -> Path:
    """SGLANG_SM120_HOME, else `~/.cache/sglang-sm120`; it need not exist.

    Raises:
        NoHomeError: the variable is unset and the user has no home directory.
    """
    given = os.environ.get(HOME)
    if given:
        return Path(given)
    try:
        return Path.home() / ".cache" / "sglang-sm120"
    except RuntimeError as error:  # neither HOME nor the user database has one
        raise NoHomeError from error


def path_for(machine: Machine) -> Path:
    """Where a launch on this machine looks for its table. May raise NoHomeError."""
    return home() / machine.file_name


def listed() -> list[Path]:
    """All tables in the home, of whatever machine; none where there is no home or it cannot be read."""
    try:
        return sorted(p for p in home().iterdir() if re.fullmatch(r"tiles-.*\.json", p.name))
    except OSError:
        return []


def load(path: Path) -> Table:
    """A table, whatever machine it is for.

    Raises:
        ValueError: what is wrong with it.
        OSError: it cannot be read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    _check_schema(data)
    gpu, sms, triton = (data.get(name) for name in ("gpu", "sms", "triton"))
    if not (isinstance(gpu, str) and type(sms) is int and isinstance(triton, str)):
        raise ValueError("it does not say for which gpu, sms and triton it is")
    entries, kept = data.get("entries"), data.get("kept", [])
    if not isinstance(entries, list) or not isinstance(kept, list):
        raise ValueError("it has no list of entries")
    for row in entries:
        _check_shape(row)
        _check_tiles(row)
    for row in kept:
        _check_shape(row)
    return Table(Machine(gpu, sms, triton), tuple(entries), tuple(kept))


def read(path: Path, here: Machine) -> Table:
    """A table for this machine.

    Raises:
        ValueError: what is wrong with it, or for which machine it is.
        OSError: it cannot be read.
    """
    table = load(path)
    difference = table.machine.difference(here)
    if difference:
        raise ValueError(difference)
    return table


def shape_of(row: dict[str, Any]) -> Shape:
    return Shape(*(row[name] for name in _SHAPE), format=row.get("format", "mxfp4"))


def tile_of(numbers: list[int]) -> Tile:
    """The tile that a row holds as numbers."""
    rows, tokens, stages, warps, unroll = numbers
    return Tile(rows, tokens, stages, warps, unroll=unroll)


def numbers_of(tile: Tile) -> list[int]:
    """The inverse of `tile_of`."""
    return [tile.rows, tile.tokens, tile.stages, tile.warps, tile.unroll]


def covered(rows: Iterable[dict[str, Any]], routing: str) -> set[tuple[Shape, int]]:
    """(shape, tokens) of the rows that were measured with this routing."""
    return {(shape_of(row), row["tokens"]) for row in rows if row.get("routing", "uniform") == routing}


def _check_schema(data: Any) -> None:
    """Raise ValueError, with the version that wrote the file, unless the form is the one read here."""
    found = data.get("schema") if isinstance(data, dict) else None
    if type(found) is not int:
        raise ValueError("not a tile table: it has no schema number")
    if found != SCHEMA:
        raise ValueError(
            f"a tile table of schema {found}; this sglang-sm120 reads schema {SCHEMA}. It needs sglang-sm120 "
            f"{data.get('overlay', '(unknown)')}, which wrote it, or make it anew with `sglang-sm120 tune`"
        )


def _check_shape(row: Any) -> None:
    try:
        numbers = [row[name] for name in (*_SHAPE, "tokens")]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the entry {row!r} lacks a field: {error}") from error
    if not all(type(n) is int and n > 0 for n in numbers):
        raise ValueError(f"the entry {row!r} has a shape that is not positive numbers")
    if row.get("routing", "uniform") not in ROUTINGS:
        raise ValueError(f"the entry {row!r} has a routing that is not one of {', '.join(ROUTINGS)}")
    if row.get("format", "mxfp4") not in FORMATS:
        raise ValueError(f"the entry {row!r} has a format that is not one of {', '.join(FORMATS)}")


def _check_tiles(row: Any) -> None:
    tiles = []
    for name in ("gate_up", "down"):
        if not isinstance(row.get(name), list):
            raise ValueError(f"the entry {row!r} lacks a field: {name!r}")
        tiles.append(row[name])
    known = [numbers_of(tile) for tile in CANDIDATES]
    if any(t not in known for t in tiles) or tiles[0][1] != tiles[1][1]:
        raise ValueError(f"the entry {row!r} has a tile that is not one of the candidates")
