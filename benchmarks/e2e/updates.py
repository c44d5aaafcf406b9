"""Weights that change under a running server: its answers afterwards are those of a server started on them.

Each launch that is `updated` has a twin: the same flags, started on the other checkpoint, together with the others
where there is a launch of that name, else now. The first server is updated to that checkpoint, once more to the same,
and back. Compared are greedy tokens and the log probability of each, in which two servers with the same weights agree:
the kernels are deterministic, so what differs is left over from elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import starmap
from typing import Any

from benchmarks.e2e import client
from benchmarks.e2e.servers import ports
from benchmarks.e2e.servers.launches import Launch
from benchmarks.e2e.servers.server import Server
from benchmarks.e2e.session import Run

OTHER_SEED = 1  # of the twin's weights
CLOSE = 1e-3  # in a log probability
UPDATE = 30.0  # seconds of an update with its questions, generous
START = 120.0  # of a twin, with the caches that the first server filled
STEPS = (("other", OTHER_SEED), ("other again", OTHER_SEED), ("back", 0))
TWIN = "-twin"


def seconds(launches: list[Launch]) -> float:
    """About how long the phase takes."""
    names = {launch.name for launch in launches}
    alone = sum(launch.updated and launch.name + TWIN not in names for launch in launches)
    return START * alone + UPDATE * len(STEPS) * sum(launch.updated for launch in launches)


def updates(run: Run, launches: list[Launch]) -> None:
    """Other weights into running servers, again, and the first ones; each time against a server started on them.

    The twins take the ports after those of the launches; run.py's check of ports must count them.
    """
    wanted = [launch for launch in launches if launch.updated]
    serving = run.serving()
    for number, launch in enumerate(wanted):
        if launch.name not in serving:
            run.leave_out(launch.name, "weight updates: the server was not up")
        elif not (run.model(launch.kind, OTHER_SEED) / "config.json").exists():
            run.leave_out(launch.name, f"weight updates: there is no checkpoint of seed {OTHER_SEED}")
        else:
            _update(run, launch, len(launches) + number)


def _update(run: Run, launch: Launch, number: int) -> None:
    """All steps on one server."""
    url = run.servers[launch.name].url
    expected = {0: _answers(url, run.left)}
    present = launch.name + TWIN in run.serving()
    twin = run.servers[launch.name + TWIN] if present else _twin(run, launch, number)
    if twin is None:
        run.leave_out(launch.name, "weight updates: the server on the other weights did not become ready")
        return
    expected[OTHER_SEED] = _answers(twin.url, run.left)
    twin.stop()
    steps = run.results[launch.name]["updates"] = []
    for name, seed in STEPS:
        if run.left < 20:
            run.leave_out(launch.name, f"weight update ({name}): no time was left")
            break
        step = client.update(url, str(run.model(launch.kind, seed)), timeout=min(90, run.left))
        steps.append(step | {"step": name, "seed": seed})
        if step["success"]:
            rows = _answers(url, run.left)
            steps[-1] |= {"alone": rows[:4]} | compare(rows, expected[seed])
            steps[-1]["changed"] = _ids(rows) != _ids(expected[OTHER_SEED - seed])
        run.say(f"{launch.name}: update ({name}): {outcome(steps[-1])}")
        if not step["success"]:
            break


def _twin(run: Run, launch: Launch, number: int) -> Server | None:
    """A server of the same launch on the other weights; None where it does not become ready."""
    twin = replace(launch, name=launch.name + TWIN, killed=False, updated=False)
    model = run.model(launch.kind, OTHER_SEED)
    server = Server(twin, model, ports.port(run.port, number), run.out, run.caches, (), run.command)
    run.servers[twin.name] = server
    about = {"says": f"{launch.says}, on the other weights", "kind": launch.kind, "env": launch.env}
    about |= {"command": server.command, "weights": "checkpoint", "expected": "ready", "log": server.log.name}
    run.results[twin.name] = about
    ready = server.wait_ready(min(run.until, time.monotonic() + START))
    run.results[twin.name] |= run.outcome(server, ready)
    if ready is None:
        server.stop()
    return None if ready is None else server


def _answers(url: str, left: float) -> list[dict[str, Any]]:
    """Every prompt with log probabilities, after the prefix cache was emptied."""
    client.flush(url)
    return [client.generate(url, ids, logprobs=True, timeout=max(1.0, min(60.0, left))) for ids in client.PROMPTS]


def _ids(rows: list[dict[str, Any]]) -> list[Any]:
    return [row.get("ids") for row in rows]


def compare(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> dict[str, Any]:
    """How answers differ from those of the server that was started on the weights.

    Returns:
        `same_tokens` of `asked` prompts, `largest_logprob_difference` over the tokens of those, None without any, and
        `acceptance`, the draft's mean accepted length on both servers, which tells of the draft's weights.
    """
    pairs = list(zip(rows, expected, strict=True))
    same = [(a, b) for a, b in pairs if a.get("ids") is not None and a["ids"] == b.get("ids")]
    apart = [max(map(abs, starmap(float.__sub__, zip(a["logprobs"], b["logprobs"], strict=True)))) for a, b in same]
    return {
        "asked": len(pairs),
        "same_tokens": len(same),
        "largest_logprob_difference": max(apart, default=None),
        "acceptance": [[row.get("spec_accept_length") for row in side] for side in (rows, expected)],
        "errors": [row["error"] for pair in pairs for row in pair if "error" in row],
    }


def holds(step: dict[str, Any]) -> bool:
    """Whether a step ended as it must: the update succeeded, tokens are equal, log probabilities close."""
    return (
        bool(step["success"])
        and step["same_tokens"] == step["asked"]
        and step["largest_logprob_difference"] is not None
        and step["largest_logprob_difference"] <= CLOSE
        and step["acceptance"][0] == step["acceptance"][1]
        and step["changed"]
    )


def outcome(step: dict[str, Any]) -> str:
    """In a line."""
    if not step["success"]:
        return f"refused: {step['message'][:200]}"
    found = f"{step['same_tokens']} of {step['asked']} answers, log probabilities within "
    return found + f"{step['largest_logprob_difference']}: {'as expected' if holds(step) else 'OTHERWISE'}"
