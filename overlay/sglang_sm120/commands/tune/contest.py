"""The runners of one layer, each in a process of its own: checked one after another, then timed in turns.

Those that fit into the GPU's memory together stay, so that the samples of a token count lie seconds apart. One that is
wrong, crashes or hangs is out, with the place that showed it; the others go on.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_sm120.commands.isolated import EndedError, Isolated
from sglang_sm120.commands.tune import requests
from sglang_sm120.moe.runner_tables import EQUAL_SCALES, RIGHT

LIMIT = 600.0  # seconds without an answer after which a process hangs, where there is that much time
ROUNDS, SAMPLES = 3, 8  # turns at a token count, and samples of each
# What a launch needs first, so that an early end leaves most: decoding, and a chunk of a prefill.
ORDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 8192, 512, 1024, 2048, 4096)
_ROOM = 1.3  # times the peak of the last process that must be free for the next one to start beside it
_TIMED = (RIGHT, EQUAL_SCALES, "unsteady")
_FINAL = (*_TIMED, "wrong", "failed", "crashed", "refused")


class TimeIsUpError(Exception):
    """The time of the command is spent."""


@dataclass
class Contest:
    """Fills the rows of a layer until they are whole or the time is spent.

    Attributes:
        start: starts the process of a runner and gives it with its first line.
        until: when the time is spent, by `clock`.
        save: called with the rows after each change.
        say: gets what is going on, and the share of the work that is done.
        counts: numbers of tokens to time, in this order.
    """

    start: Callable[[str], tuple[Isolated, str]]
    until: float
    save: Callable[[list[dict[str, Any]]], None] = lambda rows: None
    say: Callable[[str, float], None] = lambda text, share: None
    counts: Sequence[int] = ORDER
    checked: Sequence[int] = requests.CHECKED
    clock: Callable[[], float] = time.monotonic
    bandwidth: float | None = None
    _alive: dict[str, Isolated] = field(default_factory=dict)
    _unchecked: int = 0

    def run(self, runners: Sequence[str], rows: list[dict[str, Any]]) -> bool:
        """Go on with these rows, changed in place; whether nothing is left to do."""
        self.rows = {row["runner"]: row for row in rows}
        for runner in runners:
            if self.rows.setdefault(runner, {"runner": runner, "status": "unmeasured"})["status"] == "hung":
                self.rows[runner] = {"runner": runner, "status": "unmeasured"}
        todo = [r for r in runners if self._is_left(self.rows[r])]
        self._all, self._done = max(1, len(todo) * (1 + len(self.counts))), 0
        try:
            started = [(runner, *self.start(runner)) for runner in todo]  # they import SGLang at the same time
            self._alive = {runner: process for runner, process, _ in started}
            for number, (runner, _, line) in enumerate(started):
                self._unchecked = len(todo) - number
                self._enter(runner, line)
            self._time(list(self._alive))
        except TimeIsUpError:
            return False
        finally:
            for process in self._alive.values():
                process.kill()
            self._alive.clear()
            self._save()
        return not any(self._is_left(self.rows[r]) for r in runners)

    def _is_left(self, row: dict[str, Any]) -> bool:
        timed = {t["tokens"] for t in row.get("times", ())} | set(row.get("no_room", ()))
        return row["status"] not in _FINAL or (row["status"] in _TIMED and not timed.issuperset(self.counts))

    def _enter(self, runner: str, line: str) -> None:
        """Build and check one; it stays for the timing, or is timed alone where the next would not fit beside it."""
        built = self._last(runner, line)
        if built is None:
            return
        row = self.rows[runner]
        row |= {"method": built.get("method"), "bound": built.get("bound")}
        if row["status"] == "unmeasured":
            row["cases"] = []
            if self._last(runner, json.dumps(requests.check(tuple(self.checked)))) is None:
                return
            row["status"], row["why"] = verdict(row["cases"])
        if row["status"] not in _TIMED:
            self._out(runner)
        elif built.get("peak_bytes", 0) * _ROOM > built.get("free_bytes", 0):
            self._time([runner])
            self._out(runner)
        self._save()

    def _time(self, runners: list[str]) -> None:
        for tokens in self.counts:
            samples: dict[str, list[float]] = {}
            for _ in range(ROUNDS):
                for runner in [r for r in runners if r in self._alive and not _has(self.rows[r], tokens)]:
                    if self.bandwidth is None:
                        found = self._last(runner, json.dumps(requests.BANDWIDTH))
                        if found is None:
                            continue
                        self.bandwidth = found["bytes_per_s"]
                    answer = self._last(runner, json.dumps(requests.time(tokens, SAMPLES)), f"T={tokens}")
                    if answer is None:
                        samples.pop(runner, None)
                        continue
                    if not answer["us"]:
                        self.rows[runner].setdefault("no_room", []).append(tokens)
                        samples.pop(runner, None)
                        continue
                    samples.setdefault(runner, []).extend(answer["us"])
                    self.rows[runner].setdefault("hit", {})[str(tokens)] = answer.get("experts_hit")
            for runner, us in samples.items():
                self.rows[runner].setdefault("times", []).append(summary(tokens, us))
                self._done += 1
            self._save()

    def _last(self, runner: str, line: str, what: str = "") -> dict[str, Any] | None:
        """The last answer to a line; None where the runner is out by it. Rows of checks are kept on the way."""
        row, left = self.rows[runner], self.until - self.clock()
        if left <= 0:
            raise TimeIsUpError
        limit = min(LIMIT, left / (1 + self._unchecked))
        try:
            for answer in self._alive[runner].ask(line, limit):
                self.say(f"{runner}: {answer.get('at') or what}", self._done / self._all)
                if "row" in answer:
                    row["cases"].append(answer["row"])
        except EndedError as error:
            if self.clock() >= self.until:
                row["why"] = f"the time was spent at {error.at}"
                raise TimeIsUpError from error
            self._out(runner, error.how, f"{error.at}: {error.why}")
            return None
        for word in ("refused", "failed"):
            if word in answer:
                at = "" if word == "refused" else f"{self._alive[runner].at}: "
                self._out(runner, word, at + answer[word])
                return None
        return answer

    def _out(self, runner: str, status: str | None = None, why: str = "") -> None:
        """End its process; with a status it is out by that."""
        self._alive.pop(runner).kill()
        self._done += 1
        if status is not None:
            self.rows[runner] |= {"status": status, "why": why}
            self.rows[runner].pop("times", None)
            self._save()

    def _save(self) -> None:
        self.save(list(self.rows.values()))


def _has(row: dict[str, Any], tokens: int) -> bool:
    return tokens in row.get("no_room", ()) or any(t["tokens"] == tokens for t in row.get("times", ()))


def verdict(cases: Iterable[dict[str, Any]]) -> tuple[str, str]:
    """Status and reason of a runner from its checked cases."""
    every = list(cases)
    wrong = [c for c in every if not c["right"]]
    if any(not c["apart"] for c in wrong):
        return "wrong", _says(next(c for c in wrong if not c["apart"]))
    unsteady = [c for c in every if not c["repeats"]]
    if unsteady:
        return "unsteady", f"{unsteady[0]['case']}: the same call gave other bits"
    return (EQUAL_SCALES, _says(wrong[0])) if wrong else (RIGHT, "")


def _says(case: dict[str, Any]) -> str:
    error = f"relative error {case['error']:.1e}, of a token {case['worst']:.1e}"
    return f"{case['case']}: {error}; at most {case['bound']:.0e}"


def summary(tokens: int, us: Sequence[float]) -> dict[str, Any]:
    """Median, quartiles and the samples."""
    low, median, high = statistics.quantiles(us, n=4) if len(us) > 1 else [us[0]] * 3
    return {"tokens": tokens, "us": median, "low": low, "high": high, "samples": [round(u, 3) for u in us]}
