"""The search for tiles that are faster than the default ones, and the timer that compares them on a GPU.

How a comparison is kept honest: both contestants run in turns, cold L2 each time, the same inputs, on several
routings; what counts is the median of the ratios of neighbours, so that a clock that drifts touches both. How much that
median wanders by itself is measured first, with the default tiles against themselves; tiles win by more than that only,
and the winner of the search has to win twice more against the default, in comparisons of its own.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from triton.runtime.errors import OutOfResources, PTXASError

from sglang_sm120.commands import gpu_timing
from sglang_sm120.kernels.sm120 import fp4_moe
from sglang_sm120.kernels.sm120.fp4_moe.host import schedule, tuning
from sglang_sm120.kernels.sm120.fp4_moe.host.schedule import Tile, Work
from sglang_sm120.kernels.sm120.fp4_moe.weights import formats
from sglang_sm120.kernels.sm120.tile_tables import ROUTINGS, Shape, Table, covered, shape_of

ROUNDS, FINAL_ROUNDS, FINALS = 5, 15, 2
NULL_COMPARISONS = 5  # the default against itself, to learn the noise
DRAWS = 4  # routings and inputs of each token count
Tiles = tuple[Tile, Tile]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Tiles against the default ones: median microseconds of both, and the median of the paired ratios."""

    us: float
    default_us: float
    ratio: float


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a search is: point `done` of `total`, `share` of the present one."""

    done: int
    total: int
    share: float
    shape: Shape
    tokens: int
    won: int


# (shape, tokens, tiles or None for the default ones, rounds) -> None where the tiles do not run or give other bits
Compare = Callable[[Shape, int, Tiles | None, int], Comparison | None]


class _TimeIsUp(Exception):
    pass


@dataclasses.dataclass
class Search:
    """Fills a table until it is done or the time is spent.

    Attributes:
        compare: times tiles against the default ones; see `GpuTimer`.
        routing: how the timer's tokens choose experts; rows of another routing are measured anew.
        seconds: the time to spend. The point that is under way when it ends is left for the next run.
        save: called with the table after each point.
        progress: called before each comparison.
        clock: seconds.
    """

    compare: Compare
    routing: str
    seconds: float
    save: Callable[[Table], None] = lambda table: None
    progress: Callable[[Progress], None] = lambda progress: None
    clock: Callable[[], float] = time.monotonic

    def run(self, table: Table, points: Sequence[tuple[Shape, int]]) -> tuple[Table, bool]:
        """The table with what was found for these shapes and token counts, and whether no point is left."""
        self._deadline = self.clock() + self.seconds
        done = covered((*table.entries, *table.kept), self.routing)
        left = [point for point in points if point not in done]
        for number, (shape, count) in enumerate(left):
            self._here = Progress(number, len(left), 0.0, shape, count, len(table.entries))
            try:
                row = self._point(shape, count)
            except _TimeIsUp:
                return table, False
            table = _with(table, row)
            self.save(table)
        return table, True

    def _point(self, shape: Shape, tokens: int) -> dict[str, Any]:
        """A row of `entries` or of `kept`."""
        row = dataclasses.asdict(shape) | {"tokens": tokens, "routing": self.routing}
        candidates = list(_candidates(shape, tokens))
        steps = NULL_COMPARISONS + 2 * len(candidates)
        nulls = [self._ask(shape, tokens, None, ROUNDS, i / steps) for i in range(NULL_COMPARISONS)]
        found = [c for c in nulls if c is not None]
        if len(found) < len(nulls):
            raise RuntimeError(f"the default tiles gave other bits the second time, for {shape} with {tokens} tokens")
        noise = max(abs(c.ratio - 1) for c in found)
        row |= {"default_us": statistics.median(c.default_us for c in found), "noise": noise}
        best = self._best(shape, tokens, [(c, c) for c in candidates], None, NULL_COMPARISONS, steps)
        if best is not None:
            first = best[1][0]
            others = [(first, c) for c in candidates if c.tokens == first.tokens and c != first]
            best = self._best(shape, tokens, others, best, NULL_COMPARISONS + len(candidates), steps)
        final = self._confirmed(shape, tokens, best[1], 1 - noise) if best and best[0] < 1 - noise else None
        if best is None or final is None:
            return row
        gate_up, down = ([t.rows, t.tokens, t.stages, t.warps, t.unroll] for t in best[1])
        return row | {"us": final.us, "default_us": final.default_us, "gate_up": gate_up, "down": down}

    def _confirmed(self, shape: Shape, tokens: int, tiles: Tiles, limit: float) -> Comparison | None:
        """The best of many is in part the luckiest: it has to win again, and again."""
        for _ in range(FINALS):
            final = self._ask(shape, tokens, tiles, FINAL_ROUNDS, 1.0)
            if final is None or final.ratio >= limit:
                return None
        return final

    def _best(
        self, shape: Shape, tokens: int, tried: list[Tiles], best: tuple[float, Tiles] | None, step: int, steps: int
    ) -> tuple[float, Tiles] | None:
        for i, tiles in enumerate(tried):
            found = self._ask(shape, tokens, tiles, ROUNDS, (step + i) / steps)
            if found is not None and (best is None or found.ratio < best[0]):
                best = found.ratio, tiles
        return best

    def _ask(self, shape: Shape, tokens: int, tiles: Tiles | None, rounds: int, share: float) -> Comparison | None:
        if self.clock() > self._deadline:
            raise _TimeIsUp
        self.progress(dataclasses.replace(self._here, share=share))
        return self.compare(shape, tokens, tiles, rounds)


def _with(table: Table, row: dict[str, Any]) -> Table:
    """The table with a row in the place of one for the same shape and tokens."""
    key = shape_of(row), row["tokens"]
    entries, kept = (
        tuple(r for r in rows if (shape_of(r), r["tokens"]) != key) for rows in (table.entries, table.kept)
    )
    if "gate_up" in row:
        return dataclasses.replace(table, entries=(*entries, row), kept=kept)
    return dataclasses.replace(table, entries=entries, kept=(*kept, row))


def _candidates(shape: Shape, tokens: int) -> Iterator[Tile]:
    """Those that may be either product's. Wider groups only make sense with more routes an expert."""
    narrow = tokens * shape.top_k <= 8 * shape.experts
    tiles = (t for t in tuning.CANDIDATES if t.tokens == 8 or not narrow)
    return (t for t in tiles if tuning.may_unroll((t, t), shape.hidden, shape.inter))


def covers(device: torch.device, shape: Shape, tokens: int) -> bool:
    """Whether a table can say anything about this many tokens: not where the kernel for many of them runs."""
    work = Work(
        tokens, shape.top_k, shape.experts, shape.hidden, shape.inter, format=formats.FORMATS[shape.format]
    )  # fmt: skip
    return not schedule.plan(work, schedule.sm_count(device), schedule.is_sm90(device)).many


class GpuTimer:
    """Compares tiles on random weights; each of DRAWS calls has its own routing and input. Tiles must keep the bits."""

    def __init__(self, device: torch.device, routing: str = "uniform") -> None:
        if routing not in ROUTINGS:
            raise ValueError(f"routing is {routing!r}, expected one of {', '.join(ROUTINGS)}")
        self.device, self.routing = device, routing
        self.flush = gpu_timing.Flush(device)
        self.shape: Shape | None = None
        self.weights: Any = None
        self.point: tuple[int, list[tuple[torch.Tensor, ...]], _Graphs] | None = None

    def __call__(self, shape: Shape, tokens: int, tiles: Tiles | None, rounds: int) -> Comparison | None:
        if shape != self.shape:
            self.point = self.weights = None  # free the old ones first
            self.shape, self.weights = shape, self._random_weights(shape)
        if self.point is None or self.point[0] != tokens:
            cases = [self._case(shape, tokens, seed) for seed in range(DRAWS)]
            self.point = tokens, cases, _Graphs(self.weights, cases, None)
        _, cases, default = self.point
        try:
            graphs = _Graphs(self.weights, cases, tiles)
        except (OutOfResources, PTXASError):  # this GPU lacks the shared memory or registers for them
            return None
        if not all(torch.equal(a, b) for a, b in zip(graphs.outputs, default.outputs, strict=True)):
            return None
        return self._compared(graphs, default, rounds)

    def _compared(self, graphs: _Graphs, default: _Graphs, rounds: int) -> Comparison:
        """Round by round, draw by draw, both in turns; who begins alternates."""
        pairs: list[tuple[float, float]] = []
        for number in range(rounds + 1):
            for a, b in zip(graphs.replays, default.replays, strict=True):
                first_is_ours = (number + len(pairs)) % 2 == 0
                times = gpu_timing.times_us([a, b] if first_is_ours else [b, a], self.flush)
                pairs.append((times[0], times[1]) if first_is_ours else (times[1], times[0]))
        pairs = pairs[DRAWS:]  # the first round warms up
        return Comparison(
            statistics.median(p[0] for p in pairs),
            statistics.median(p[1] for p in pairs),
            statistics.median(p[0] / p[1] for p in pairs),
        )

    def _random_weights(self, shape: Shape) -> Any:
        """Repacked; codes are uniform, so NVFP4's scales are no cast of MXFP4's and its own kernel runs."""
        g = torch.Generator(device=self.device).manual_seed(0)

        def draw(low: int, high: int, *size: int) -> torch.Tensor:
            return torch.randint(low, high, size, dtype=torch.uint8, device=self.device, generator=g)

        e, h, i = shape.experts, shape.hidden, shape.inter
        if shape.format == "nvfp4":
            both, down = (torch.full(size, 2.0**-6, device=self.device) for size in ((e, 2), (e,)))
            return fp4_moe.prepare_nvfp4(
                draw(0, 256, e, 2 * i, h // 2), draw(0x30, 0x41, e, 2 * i, h // 16), both,
                draw(0, 256, e, h, i // 2), draw(0x30, 0x41, e, h, i // 16), down,
            )  # fmt: skip
        return fp4_moe.prepare_mxfp4(
            draw(0, 256, e, 2 * i, h // 2), draw(119, 123, e, 2 * i, h // 32), draw(0, 256, e, h, i // 2),
            draw(119, 123, e, h, i // 32),
        )  # fmt: skip

    def _case(self, shape: Shape, tokens: int, seed: int) -> tuple[torch.Tensor, ...]:
        """x, topk_ids, topk_weights. Speculative: groups of four tokens, which share an expert with probability 0.7."""
        g = torch.Generator(device=self.device).manual_seed(1000 * tokens + seed)
        x = torch.randn(tokens, shape.hidden, device=self.device, generator=g).bfloat16()
        ids = torch.rand(tokens, shape.experts, device=self.device, generator=g).topk(shape.top_k).indices
        if self.routing == "speculative":
            leader = torch.arange(tokens, device=self.device) // 4 * 4
            keep = torch.rand(tokens, shape.top_k, device=self.device, generator=g) < 0.7
            ids = torch.where(keep, ids[leader], ids)
        weights = torch.rand(tokens, shape.top_k, device=self.device, generator=g) + 0.1
        return x, ids.to(torch.int32), weights / weights.sum(-1, keepdim=True)


class _Graphs:
    """A CUDA graph of one call for each case, and what the calls give."""

    def __init__(self, weights: Any, cases: Sequence[tuple[torch.Tensor, ...]], tiles: Tiles | None) -> None:
        self.outputs = [torch.empty_like(case[0]) for case in cases]
        self.replays: list[Callable[[], Any]] = []
        with tuning.trying(tiles):
            for case, out in zip(cases, self.outputs, strict=True):
                x, ids, probabilities = case
                call = partial(fp4_moe.fp4_moe, x, weights, ids, probabilities, out=out)
                self.replays.append(gpu_timing.captured(call).replay)
