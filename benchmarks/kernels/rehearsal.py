#!/usr/bin/env python3
"""Run every contestant once at every token count, each in a process of its own, before anything is timed.

It puts the kernels that are compiled on first use into the caches on disk, in parallel, and finds the contestants that
end in an error or a crash, so that they cannot take the measurement down with them.

    rehearsal.py SHAPE CONTESTANT TOKENS,TOKENS,... FORMAT    one such process
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import workload
from contestants import CONTESTANTS

MEMORY = 110e9  # bytes of GPU memory that the processes may take together
COPIES = 3.2  # weights, the contestant's copy, and what repacking needs for a while
CONTEXT = 1.5e9  # bytes of a process' CUDA context, input and intermediate results
SECONDS = 300  # for one process


def jobs_of(rows: Iterable[tuple[str, str, int]], names: list[str]) -> list[tuple[str, str, list[int]]]:
    """(shape, contestant, token counts): all of them where kernels are compiled for each, else the ends."""
    tokens: dict[str, list[int]] = {}
    for shape, _, count in rows:
        tokens.setdefault(shape, []).append(count)
    jobs = []
    for shape, counts in tokens.items():
        counts = sorted(set(counts))
        jobs += [(shape, n, counts if CONTESTANTS[n].compiles else [counts[0], counts[-1]]) for n in names]
    return jobs


def memory_of(shape: str) -> float:
    experts, hidden, inter, _ = workload.SHAPES[shape]
    return experts * 3 * hidden * inter * 9 / 16 * COPIES + CONTEXT


def rehearse(
    rows: Iterable[tuple[str, str, int]],
    names: list[str],
    width: int,
    weights: str = "mxfp4",
    seconds: float = float("inf"),
) -> dict[str, dict[str, str]]:
    """Run all jobs, at most `width` at once and within the memory. Returns shape -> contestant -> why it failed.

    seconds: after which no further job begins; what these would have compiled is then compiled in the race.
    """
    waiting, until = jobs_of(rows, names), time.time() + seconds
    running: list[dict[str, Any]] = []
    failed: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as logs:
        while waiting or running:
            used = sum(memory_of(r["shape"]) for r in running)
            for job in list(waiting):
                if running and (len(running) >= width or used + memory_of(job[0]) > MEMORY):
                    continue
                if time.time() > until:
                    waiting.clear()
                    break
                waiting.remove(job)
                used += memory_of(job[0])
                running.append(started(*job, Path(logs) / str(len(waiting)), weights))
            time.sleep(0.1)
            for r in list(running):
                why = outcome(r)
                if why is None:
                    continue
                running.remove(r)
                if why:
                    failed.setdefault(r["shape"], {})[r["name"]] = why
    return failed


def started(shape: str, name: str, tokens: list[int], log: Path, weights: str) -> dict[str, Any]:
    command = [sys.executable, __file__, shape, name, ",".join(map(str, tokens)), weights]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    return {"shape": shape, "name": name, "process": process, "log": log, "until": time.time() + SECONDS}


def outcome(run: dict[str, Any]) -> str | None:
    """None while it runs, "" when it ended well, else why it did not."""
    code = run["process"].poll()
    if code is None and time.time() < run["until"]:
        return None
    if code is None:
        run["process"].kill()
        run["process"].wait()
        return f"not ready after {SECONDS} s"
    lines = run["log"].read_text(errors="replace").strip().splitlines()
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]  # CUDA's go on after their name
    why = [*lines[-1:], *named[-1:]][-1:] or ["no message"]
    return "" if code == 0 else f"rehearsal ended with {code}: {why[0]}"[:300]


def main() -> int:
    shape, name, tokens, weights = sys.argv[1:]
    experts, hidden, inter, top_k = workload.SHAPES[shape]
    contestant = CONTESTANTS[name].make(workload.random_weights(experts, hidden, inter, weights), {})
    for count in map(int, tokens.split(",")):
        try:
            call = contestant.call(workload.case(count, experts, hidden, top_k))
        except ValueError as error:  # a token count that this contestant says it does not take
            print(f"{count} tokens: {error}")
            continue
        call()
        torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
