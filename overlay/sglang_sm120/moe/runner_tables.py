"""Files of runners that `sglang-sm120 tune` checked and timed: where they lie, their form, and for what one holds.

Imports neither torch nor SGLang. A file holds for one GPU, one SGLang release and one release of the overlay:

    {"schema": 1, "kind": "runners", "gpu": "…", "sglang": "0.5.23", "overlay": "0.1.0", "layers": [
      {"format": "nvfp4", "experts": 256, "hidden": 4096, "inter": 1024, "top_k": 6, "tp": 2, "ep": 1,
       "runners": [{"runner": "marlin", "status": "unsteady", "why": "…", "times": [
         {"tokens": 1, "us": 41.0, "low": 40.8, "high": 41.5}, …]}, …]}, …]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglang_sm120 import __version__, schemas
from sglang_sm120.kernels.sm120 import tile_tables

SCHEMA = 1
RIGHT = "right"
EQUAL_SCALES = "equal scales only"  # right unless gate and up have different global scales
# The status of a runner. Only `right` ones are chosen by `auto`.
STATUSES = (RIGHT, EQUAL_SCALES, "unsteady", "wrong", "failed", "crashed", "hung", "refused", "unmeasured")


@dataclass(frozen=True)
class Layer:
    """Routed experts as a rank holds them: format, number of all experts, widths of a rank, top-k, parallel sizes."""

    format: str
    experts: int
    hidden: int
    inter: int
    top_k: int
    tp: int = 1
    ep: int = 1

    def __str__(self) -> str:
        parallel = f"TP{self.tp}" + (f" EP{self.ep}" if self.ep > 1 else "")
        return f"{self.format} {self.experts},{self.hidden},{self.inter},{self.top_k} {parallel}"


_FIELDS = tuple(Layer.__dataclass_fields__)


@dataclass(frozen=True)
class Place:
    """For what a table holds: product name of the GPU, releases of SGLang and of the overlay."""

    gpu: str
    sglang: str
    overlay: str = __version__

    @property
    def file_name(self) -> str:
        gpu = re.sub(r"[^a-z0-9.]+", "-", self.gpu.lower())
        return f"runners-{gpu}-sglang{self.sglang}.json"

    def difference(self, here: Place) -> str | None:
        """`it is for gpu 'A', this is 'B'`; None if there is none."""
        for name, theirs in asdict(self).items():
            ours = getattr(here, name)
            if theirs != ours:
                return f"it is for {name} {theirs!r}, this is {ours!r}"
        return None


@dataclass(frozen=True)
class Time:
    """Microseconds of a layer with so many tokens: the median, and the quartiles around it."""

    us: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """What was found of one runner; `times` by number of tokens."""

    status: str
    why: str
    times: Mapping[int, Time]


Table = dict[Layer, dict[str, Row]]


def path_for(place: Place) -> Path:
    """Where a launch looks for its table. May raise `tile_tables.NoHomeError`."""
    return tile_tables.home() / place.file_name


def layer_of(entry: Mapping[str, Any]) -> Layer:
    """The layer that an entry of a file is about. Raises ValueError if it names none."""
    try:
        return Layer(**{name: entry[name] for name in _FIELDS})
    except KeyError as error:
        raise ValueError(f"a layer lacks {error}") from error


def load(path: Path) -> tuple[Place, dict[str, Any]]:
    """A file as it stands, and for what it holds.

    Raises:
        ValueError: it is no such table; the message says why.
        OSError: it cannot be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    schemas.check(document, "a table of runners", SCHEMA)
    names = ("gpu", "sglang", "overlay")
    if document.get("kind") != "runners" or not all(isinstance(document.get(name), str) for name in names):
        raise ValueError("it does not say for which gpu, sglang and overlay it is")
    if not isinstance(document.get("layers"), list):
        raise ValueError("it has no list of layers")
    return Place(*(document[name] for name in names)), document


def read(path: Path, here: Place) -> Table:
    """The table in a file that holds here.

    Raises:
        ValueError: what is wrong with it, or for what it holds instead.
        OSError: it cannot be read.
    """
    place, document = load(path)
    difference = place.difference(here)
    if difference:
        raise ValueError(difference)
    return rows_of(document)


def rows_of(document: Mapping[str, Any]) -> Table:
    """The layers of a document. Raises ValueError where one has not the form."""
    table: Table = {}
    for entry in document["layers"]:
        try:
            table[layer_of(entry)] = {row["runner"]: _row(row) for row in entry["runners"]}
        except (KeyError, TypeError) as error:
            raise ValueError(f"a row of its layers has not the form: {error!r}") from error
    return table


def _row(row: Mapping[str, Any]) -> Row:
    if row["status"] not in STATUSES:
        raise ValueError(f"the status of {row['runner']} is {row['status']!r}; expected one of {', '.join(STATUSES)}")
    times = {t["tokens"]: Time(float(t["us"]), float(t["low"]), float(t["high"])) for t in row.get("times", [])}
    if not all(type(tokens) is int and tokens > 0 and time.us > 0 for tokens, time in times.items()):
        raise ValueError(f"a time of {row['runner']} is not positive")
    return Row(row["status"], str(row.get("why") or ""), times)
