"""What a run does with servers that are up: loads, SGLang's serving benchmark, other weights, a killed scheduler."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

from benchmarks.e2e import bench, client, faults, updates
from benchmarks.e2e.servers.launches import CHUNK, Launch
from benchmarks.e2e.session import Run

LOADS = ((1, 8), (4, 24), (8, 48))  # requests at once, and in all
# Seconds, generous: a load of each size on one server; a kill.
LOAD, KILL = 10.0, 30.0
IMPORTS, BETWEEN = 40.0, 3.0  # of a serving benchmark before its first rate, and beside each rate
PAGE = 256  # tokens: SGLang's DeepSeek-V4 fills whole pages
# Seconds at most for a prefill of each size, on all servers at once, before the first benchmark. SGLang compiles for
# several of them, for 10 to 16 s each where no cache has it.
WARM = 60.0
LEAST = 0.3  # of its time, below which a serving benchmark is left out


def has_any(launch: Launch, with_updates: bool) -> bool:
    """Whether a phase needs this server."""
    return bool(launch.loaded or launch.bench or launch.killed or (launch.updated and with_updates))


def seconds(launches: list[Launch], share: float, rounds: int, with_updates: bool) -> float:
    """About how long all phases take."""
    total = LOAD * (rounds + 1) * sum(la.loaded for la in launches) + WARM * any(la.bench for la in launches)
    return total + _benches_seconds(_bench_rounds(launches), share) + _closing_seconds(launches, with_updates)


def _closing_seconds(launches: list[Launch], with_updates: bool) -> float:
    """Of what follows the serving benchmarks."""
    changing = updates.seconds(launches) if with_updates else 0.0
    return changing + KILL * sum(la.killed for la in launches)


def _bench_rounds(launches: list[Launch]) -> list[list[Launch]]:
    """Those with a serving benchmark: alone where one has several GPUs, then side by side, one of each GPU."""
    benched = [launch for launch in launches if launch.bench]
    lanes: dict[str, list[Launch]] = {}
    for launch in benched:
        if "," not in launch.gpus:
            lanes.setdefault(launch.gpus, []).append(launch)
    side_by_side = [[launch for launch in turn if launch] for turn in zip_longest(*lanes.values())]
    return [[launch] for launch in benched if "," in launch.gpus] + side_by_side


def _benches_seconds(rounds: list[list[Launch]], share: float) -> float:
    return sum(max(_bench_seconds(launch, share) for launch in turn) for turn in rounds)


def _bench_seconds(launch: Launch, share: float) -> float:
    return IMPORTS + sum(rate_seconds * share + BETWEEN for _, rate_seconds in launch.bench)


def benches(run: Run, launches: list[Launch], with_updates: bool) -> None:
    """SGLang's serving benchmark, all rates for shorter where the time would not last for what follows."""
    todo = _up(run, [launch for launch in launches if launch.bench], "serving benchmark")
    rounds = _bench_rounds(todo)
    if not rounds:
        return
    until = run.until - _closing_seconds(launches, with_updates)
    fixed = _benches_seconds(rounds, 0.0)
    rated = _benches_seconds(rounds, run.share) - fixed
    # The first prefills have what the shortest benchmarks leave; what they do not need is the benchmarks'.
    spare = until - time.monotonic() - fixed - LEAST * rated
    if spare < 0:
        for launch in todo:
            run.leave_out(launch.name, "serving benchmark: too little time was left")
        return
    warm_until = time.monotonic() + min(WARM, spare)
    with ThreadPoolExecutor(len(todo)) as pool:
        list(pool.map(lambda launch: _warm(run, launch, warm_until), todo))
    part = min(1.0, (until - time.monotonic() - fixed) / rated)
    for n, turn in enumerate(rounds):
        end = until - _benches_seconds(rounds[n + 1 :], run.share * part)
        with ThreadPoolExecutor(len(turn)) as pool:
            for job in [pool.submit(_bench, run, launch, run.share * part, end) for launch in turn]:
                job.result()


def _warm(run: Run, launch: Launch, until: float) -> None:
    """A first prefill of each size: a benchmark's own short rehearsal meets a few of them."""
    rows = client.sizes(run.servers[launch.name].url, PAGE, CHUNK, until)
    run.results[launch.name]["sizes"] = rows
    answered = [row["prompt_tokens"] for row in rows if "error" not in row]
    missed = ", ".join(str(length) for length in range(PAGE, CHUNK + 1, PAGE) if length not in answered)
    if missed:
        what = f"first prefills of {missed} tokens: the serving benchmark may have met compilations"
        run.leave_out(launch.name, what)


def _bench(run: Run, launch: Launch, share: float, until: float) -> None:
    """All rates on one server."""
    rates = tuple((rate, seconds * share) for rate, seconds in launch.bench)
    found, error = bench.run(
        run.servers[launch.name].url, run.model(launch.kind), run.out / f"{launch.name}-bench", rates,
        max(1.0, until - time.monotonic()),
    )  # fmt: skip
    run.results[launch.name] |= {"bench": found, "bench_error": error, "bench_seconds": [s for _, s in rates]}
    run.say(f"{launch.name}: {[row['request_rate'] for row in found]} requests/s {error}")
    missed = ", ".join(f"{rate:g}" for rate, _ in rates[len(found) :])
    if missed:
        run.leave_out(launch.name, f"serving benchmark at {missed} requests/s: {error or 'no figure'}")


def kills(run: Run, launches: list[Launch]) -> None:
    """Kill one scheduler of the servers that are to be."""
    for launch in _up(run, [launch for launch in launches if launch.killed], "killed scheduler"):
        if run.left < 20:
            run.leave_out(launch.name, "killed scheduler: no time was left")
        else:
            killed = faults.kill_scheduler(run.servers[launch.name], min(60.0, run.left - 10))
            run.results[launch.name]["killed"] = killed
            run.say(f"{launch.name}: scheduler killed; ended after {killed.get('ended_after_s')} s")


def loads(run: Run, launches: list[Launch], rounds: int) -> None:
    """The same short loads on each server in turn, the others idle; unmeasured ones compile what is missing."""
    names = [launch.name for launch in _up(run, [launch for launch in launches if launch.loaded], "short loads")]
    for number in range(rounds + 1):
        for at_once, count in LOADS:
            for name in names:
                if run.left < 20:
                    run.leave_out(name, f"short load, {at_once} at once: no time was left")
                    continue
                url, timeout = run.servers[name].url, min(60, run.left)
                found = client.load(url, at_once, count if number else 2 * at_once, timeout=timeout)
                if number:
                    run.results[name].setdefault("loads", []).append(found | {"round": number})
                    run.say(f"{name}: {at_once} at once, {found['tokens_per_s']} tokens/s")


def _up(run: Run, wanted: list[Launch], phase: str) -> list[Launch]:
    """Those that serve; of the others it is noted that they missed the phase."""
    serving = run.serving()
    for launch in wanted:
        if launch.name not in serving:
            run.leave_out(launch.name, f"{phase}: the server was not up")
    return [launch for launch in wanted if launch.name in serving]
