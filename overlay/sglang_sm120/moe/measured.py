"""Which runner was the fastest right one for a launch, from a table of `tune`. Pure: no torch, no SGLang, no files.

What is compared is the time in a layer for each token that is made: a decode step's over its batch, and that of the
prompt tokens read meanwhile, at the launch's chunk; the geometric mean over the batch sizes of its CUDA graphs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sglang_sm120.moe.runner_tables import RIGHT, Row, Time

PROMPT_TOKENS = 4  # read for each token made
TIE = 0.02  # relative difference that is none, where the times' own spread is smaller
_APART = 4.0  # neighbours between which a time is interpolated are at most this factor apart
BATCHES = (1, 2, 4, 8, 16, 32)  # of a launch that names none


@dataclass(frozen=True)
class Mix:
    """What a launch sends through a layer.

    Attributes:
        batches: sequences of its decode steps.
        drafted: tokens of a sequence in a step, one entry for each kind of step.
        chunk: tokens of a prefill.
    """

    batches: tuple[int, ...] = BATCHES
    drafted: tuple[int, ...] = (1,)
    chunk: int = 8192


@dataclass(frozen=True)
class Choice:
    """A runner and what decided.

    Attributes:
        runner: None where nothing could be chosen.
        us, other, other_us: microseconds a token made of the runner, and those of the next best one.
        why: why nothing was chosen.
        out: runners that were left out, with the reason.
    """

    runner: str | None
    us: float | None = None
    other: str | None = None
    other_us: float | None = None
    why: str = ""
    out: Mapping[str, str] = field(default_factory=dict)

    def says(self) -> str:
        """One clause for a log, with the two figures."""
        if self.runner is None:
            return self.why
        text = f"measured here: {self.us:.2f} us a token in each layer"
        return f"{text}; {self.other} {self.other_us:.2f}" if self.other else f"{text}; no other runner was right"


def choose(rows: Mapping[str, Row], allowed: Sequence[str], fixed: str, mix: Mix) -> Choice:
    """The fastest right runner among those that a launch can have.

    Args:
        rows: runner -> what was found of it, for the launch's layer.
        allowed: the runners that this release and this launch can run the layer with.
        fixed: what `auto` means without a table; it wins a tie.
        mix: what the launch sends through the layer.
    """
    out: dict[str, str] = {}
    costs: dict[str, tuple[float, float]] = {}
    for runner, row in rows.items():
        reason = _obstacle(runner, row, allowed, mix)
        if reason:
            out[runner] = reason
        else:
            costs[runner] = _cost(row.times, mix)
    if fixed not in rows or (fixed in out and rows[fixed].status in (RIGHT, "unmeasured", "hung")):
        return Choice(None, why=f"the table has no times of {fixed} for this launch", out=out)
    if not costs:
        return Choice(None, why="no runner in the table was right", out=out)
    ranked = sorted(costs, key=lambda r: (costs[r][0], r))
    best = ranked[0]
    if fixed in costs and _tied(costs[best], costs[fixed]):
        best = fixed
    other = next((r for r in ranked if r != best), None)
    return Choice(best, costs[best][0], other, costs[other][0] if other else None, out=out)


def _obstacle(runner: str, row: Row, allowed: Sequence[str], mix: Mix) -> str | None:
    if row.status != RIGHT:
        return f"{row.status}: {row.why}" if row.why else row.status
    if runner not in allowed:
        return "this launch cannot have it"
    missing = [t for t in _tokens(mix, row.times) if _us(row.times, t) is None]
    return f"no times near {missing[0]} tokens" if missing else None


def _tokens(mix: Mix, times: Mapping[int, Time]) -> list[int]:
    """The token counts that a mix asks about; a chunk counts as the largest that is measured at all."""
    decode = {batch * drafted for batch in mix.batches for drafted in mix.drafted}
    return [*sorted(decode), min(mix.chunk, max(times, default=mix.chunk))]


def _cost(times: Mapping[int, Time], mix: Mix) -> tuple[float, float]:
    """Microseconds for each token made, and the relative spread of the times behind it."""
    chunk = _tokens(mix, times)[-1]
    prompt = PROMPT_TOKENS * _known(times, chunk) / chunk
    found = [_known(times, b * d) / b + prompt for b in mix.batches for d in mix.drafted]
    spreads = [(t.high - t.low) / t.us for t in times.values()]
    return math.exp(sum(map(math.log, found)) / len(found)), sorted(spreads)[len(spreads) // 2]


def _tied(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return abs(a[0] - b[0]) <= max(TIE, a[1], b[1]) * min(a[0], b[0])


def _known(times: Mapping[int, Time], tokens: int) -> float:
    us = _us(times, tokens)
    assert us is not None
    return us


def _us(times: Mapping[int, Time], tokens: int) -> float | None:
    """A time, between two measured ones on a line of logarithms; None where there are none near."""
    if tokens in times:
        return times[tokens].us
    below = max((t for t in times if t < tokens), default=None)
    above = min((t for t in times if t > tokens), default=None)
    if below is None or above is None or above / below > _APART:
        return None
    share = math.log(tokens / below) / math.log(above / below)
    return math.exp((1 - share) * math.log(times[below].us) + share * math.log(times[above].us))
