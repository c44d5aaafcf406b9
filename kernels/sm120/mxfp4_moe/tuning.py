"""A table of tiles measured on the user's GPU, which takes the place of `schedule`'s choice.

    python -m sglang_sm120.kernels.sm120.mxfp4_moe.tuning --shape 256,4096,1024,6 --minutes 5

Only W4A16 tiles that add in the same order are tried (`CANDIDATES`), so a table changes times and never a bit of a
result; products with many tokens and the native W4A8 keep their tiles. The file names the GPU, its SM count and the
Triton release; one that does not fit this machine, or does not have the form below, is reported once and ignored.

    {"schema": 1, "gpu": "…", "sms": 188, "triton": "3.8.0", "entries": [
      {"experts": 256, "hidden": 4096, "inter": 1024, "top_k": 6, "tokens": 4, "us": 40.1, "default_us": 43.0,
       "gate_up": [32, 8, 3, 1], "down": [64, 8, 3, 1]}, …]}

A tile is rows, tokens, stages, warps. An entry serves the token counts above half of its own up to its own.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from . import schedule
from .prepare import PreparedWeights
from .schedule import Plan, Tile, Work

logger = logging.getLogger(__name__)
SCHEMA = 1
# One warp holds at most 64 x 8 or 32 x 16 sums without spilling registers (scripts/sm120_report.py).
CANDIDATES = tuple(
    Tile(rows, tokens, stages, warps)
    for rows, tokens, warps in ((32, 8, 1), (64, 8, 1), (64, 8, 2), (32, 16, 1), (64, 16, 2), (64, 32, 2))
    for stages in (2, 3, 4)
)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_forced: list[tuple[Tile, Tile]] = []  # what `search` is trying just now


@dataclasses.dataclass(frozen=True)
class Shape:
    """Routed experts of one rank."""

    experts: int
    hidden: int
    inter: int
    top_k: int


Entries = dict[tuple[Shape, int], tuple[Tile, Tile]]


def default_path(device: torch.device) -> Path:
    home = Path(os.environ.get("SGLANG_SM120_HOME") or Path.home() / ".cache" / "sglang-sm120")
    name = torch.cuda.get_device_name(device).lower().replace(" ", "-")
    return home / f"tiles-{name}-{schedule.sm_count(device)}-triton{triton.__version__}.json"


def plan(device: torch.device, work: Work) -> Plan:
    """`schedule.plan`, with the tiles of this device's table where it has an entry."""
    if _forced:
        return _with_tiles(_default(device, work), work, _forced[-1])
    return _plan(device, work)


@functools.lru_cache(maxsize=4096)
def _plan(device: torch.device, work: Work) -> Plan:
    p = _default(device, work)
    if device.type != "cuda":
        return p
    shape = Shape(work.experts, work.hidden, work.inter, work.top_k)
    tiles = table(device).get((shape, 1 << (work.tokens - 1).bit_length()))
    return _with_tiles(p, work, tiles) if tiles else p


def _default(device: torch.device, work: Work) -> Plan:
    return schedule.plan(work, schedule.sm_count(device), schedule.is_sm90(device))


def _with_tiles(p: Plan, work: Work, tiles: tuple[Tile, Tile]) -> Plan:
    """p with these tiles; unchanged for products that tables do not cover and where MXFP8 rounding needs 64 rows."""
    gate_up, down = tiles
    if p.many or work.fp8 or (work.mxfp8 and gate_up.rows < 64):
        return p
    groups = work.routes if p.scan else min(work.routes, min(work.routes, work.experts) + work.routes // gate_up.tokens)
    return dataclasses.replace(p, gate_up=gate_up, down=down, groups=groups)


@functools.cache
def table(device: torch.device) -> Entries:
    """The entries for this device; empty if there is no file or it does not fit, which is logged."""
    path = default_path(device)
    if not path.is_file():
        return {}
    try:
        found = read(path, torch.cuda.get_device_name(device), schedule.sm_count(device))
    except (ValueError, OSError) as error:
        logger.warning("Ignoring the tile table %s: %s", path, error)
        return {}
    logger.info("Tiles of %d shapes and token counts from %s", len(found), path)
    return found


def read(path: Path, gpu: str, sms: int) -> Entries:
    """The entries of a table. ValueError says what is wrong with it, or for which machine it is."""
    try:
        data = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    for name, here in (("gpu", gpu), ("sms", sms), ("triton", triton.__version__)):
        if data.get(name) != here:
            raise ValueError(f"it is for {name} {data.get(name)!r}, this is {here!r}")
    entries = data.get("entries")
    if not isinstance(entries, list):
        raise ValueError("it has no list of entries")
    return dict(_entry(e) for e in entries)


def _entry(e: Any) -> tuple[tuple[Shape, int], tuple[Tile, Tile]]:
    try:
        numbers = [e[k] for k in ("experts", "hidden", "inter", "top_k", "tokens")]
        tiles = [Tile(*e[k]) for k in ("gate_up", "down")]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the entry {e!r} lacks a field: {error}") from error
    if not all(type(n) is int and n > 0 for n in numbers):
        raise ValueError(f"the entry {e!r} has a shape that is not positive numbers")
    if any(t not in CANDIDATES for t in tiles) or tiles[0].tokens != tiles[1].tokens:
        raise ValueError(f"the entry {e!r} has a tile that is not one of the candidates")
    return (Shape(*numbers[:4]), numbers[4]), (tiles[0], tiles[1])


def write(path: Path, gpu: str, sms: int, entries: Sequence[dict[str, Any]]) -> None:
    """Replace the file at once, so that an interruption leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    head = {"schema": SCHEMA, "gpu": gpu, "sms": sms, "triton": triton.__version__}
    new.write_text(json.dumps(head | {"entries": list(entries)}, indent=1) + "\n")
    new.replace(path)


@contextlib.contextmanager
def _trying(tiles: tuple[Tile, Tile]) -> Iterator[None]:
    _forced.append(tiles)
    try:
        yield
    finally:
        _forced.pop()


def search(
    shapes: Sequence[Shape],
    tokens: Sequence[int],
    seconds: float,
    timer: Callable[[Shape, int, tuple[Tile, Tile] | None], float | None],
    done: Sequence[dict[str, Any]] = (),
    found: Callable[[list[dict[str, Any]], int, int], None] = lambda entries, i, n: None,
) -> list[dict[str, Any]]:
    """Entries for the shapes and token counts, those in `done` kept as they are, until the time is spent.

    timer gives the microseconds of a call with these tiles (None: the default ones), or None if they do not run or give
    other bits. First both products try each candidate together, then the second product tries the others of that width.
    """
    entries, begun = list(done), time.monotonic()
    have = {(Shape(e["experts"], e["hidden"], e["inter"], e["top_k"]), e["tokens"]) for e in entries}
    todo = [(s, t) for s in shapes for t in tokens if (s, t) not in have]
    for i, (shape, count) in enumerate(todo):
        if time.monotonic() - begun > seconds:
            break
        default = timer(shape, count, None)
        if default is None:
            continue
        width = 8 if count * shape.top_k / shape.experts <= 8 else 0  # wider groups only make sense with more routes
        best: tuple[float, tuple[Tile, Tile]] | None = None
        for gate_up in [c for c in CANDIDATES if width in (0, c.tokens)]:
            us = timer(shape, count, (gate_up, gate_up))
            if us is not None and (best is None or us < best[0]):
                best = us, (gate_up, gate_up)
        if best is not None:
            first = best[1][0]
            for down in [c for c in CANDIDATES if c.tokens == first.tokens and c != first]:
                us = timer(shape, count, (first, down))
                if us is not None and us < best[0]:
                    best = us, (first, down)
        if best is not None and best[0] < 0.99 * default:
            gate_up, down = best[1]
            fields = [dataclasses.astuple(t)[:4] for t in (gate_up, down)]
            entry = dataclasses.asdict(shape) | {"tokens": count, "us": best[0], "default_us": default}
            entries.append(entry | {"gate_up": list(fields[0]), "down": list(fields[1])})
        found(entries, i + 1, len(todo))
    return entries


class GpuTimer:
    """Times a call on random weights with cold L2 (each call of a graph has its own experts), checking its bits."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.shape: Shape | None = None
        self.weights: PreparedWeights | None = None
        self.expected: dict[int, torch.Tensor] = {}

    def __call__(self, shape: Shape, tokens: int, tiles: tuple[Tile, Tile] | None) -> float | None:
        if shape != self.shape:
            self._make(shape)
        calls = self._inputs(shape, tokens)
        default = _default(self.device, Work(tokens, shape.top_k, shape.experts, shape.hidden, shape.inter))
        with _trying(tiles or (default.gate_up, default.down)):
            outputs = [self._call(c) for c in calls]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for c, out in zip(calls, outputs, strict=True):
                    self._call(c, out)
        times = []
        for _ in range(7):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / len(calls))
        if tiles is None:
            self.expected[tokens] = outputs[0].clone()
        elif not torch.equal(outputs[0], self.expected[tokens]):
            return None
        return statistics.median(times[2:])

    def _make(self, shape: Shape) -> None:
        from .prepare import prepare_weights

        def draw(low: int, high: int, *size: int) -> torch.Tensor:
            return torch.randint(low, high, size, dtype=torch.uint8, device=self.device)

        e, h, i = shape.experts, shape.hidden, shape.inter
        self.shape, self.weights, self.expected = shape, None, {}
        self.weights = prepare_weights(
            draw(0, 256, e, 2 * i, h // 2), draw(119, 123, e, 2 * i, h // 32), draw(0, 256, e, h, i // 2),
            draw(119, 123, e, h, i // 32),
        )  # fmt: skip

    def _inputs(self, shape: Shape, tokens: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        g = torch.Generator(device=self.device).manual_seed(tokens)
        inputs = []
        for _ in range(max(4, min(16, shape.experts // (tokens * shape.top_k)))):
            x = torch.randn(tokens, shape.hidden, device=self.device, dtype=torch.bfloat16, generator=g)
            ids = torch.rand(tokens, shape.experts, device=self.device, generator=g).topk(shape.top_k).indices
            weights = torch.rand(tokens, shape.top_k, device=self.device, generator=g)
            inputs.append((x, ids.to(torch.int32), weights))
        return inputs

    def _call(self, case: tuple[torch.Tensor, ...], out: torch.Tensor | None = None) -> torch.Tensor:
        from .api import mxfp4_moe

        assert self.weights is not None
        return mxfp4_moe(case[0], self.weights, case[1], case[2], out=out)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", required=True, metavar="EXPERTS,HIDDEN,INTER,TOP_K")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--out", type=Path, help="default: where the kernel looks for it")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("tuning measures, so it needs a CUDA GPU")
    device = torch.device("cuda", torch.cuda.current_device())
    gpu, sms = torch.cuda.get_device_name(device), schedule.sm_count(device)
    path = options.out or default_path(device)
    shapes = [Shape(*(int(n) for n in text.split(","))) for text in options.shape]
    done: list[dict[str, Any]] = []
    if path.is_file():
        read(path, gpu, sms)
        done = json.loads(path.read_text())["entries"]

    def found(entries: list[dict[str, Any]], i: int, n: int) -> None:
        write(path, gpu, sms, entries)
        bar = "#" * (30 * i // n)
        print(f"\r[{bar:30s}] {i}/{n}, {len(entries)} entries", end="", file=sys.stderr, flush=True)

    try:
        search(shapes, [int(t) for t in options.tokens.split(",")], 60 * options.minutes, GpuTimer(device), done, found)
    except KeyboardInterrupt:
        print("\ninterrupted; what was found is kept", file=sys.stderr)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
