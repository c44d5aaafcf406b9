"""What a run does with servers that are up: loads, SGLang's serving benchmark, other weights, a killed scheduler."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import asks
import bench
import faults
from launches import Launch

if TYPE_CHECKING:
    from run import Run

LOADS = ((1, 8), (4, 24), (8, 48))  # requests at once, and in all
OTHER_SEED = 1  # of the weights that a running server is updated to


def seconds(launches: list[Launch], share: float) -> float:
    """About how long the serving benchmarks and the kills take."""
    several = [la for la in launches if "," in la.gpus]
    total = sum(_bench_seconds(la, share) for la in several)
    total += max((_bench_seconds(la, share) for la in launches if la not in several), default=0.0)
    return total + 30.0 * sum(la.killed for la in launches)


def _bench_seconds(launch: Launch, share: float) -> float:
    return sum(rate_seconds * share + 3.0 for _, rate_seconds in launch.bench) + (25.0 if launch.bench else 0.0)


def benches(run: Run, launches: list[Launch]) -> None:
    """SGLang's serving benchmark: servers of several GPUs one after another, then those of one GPU side by side."""
    todo = [launch for launch in launches if launch.bench and launch.name in run.serving()]
    for several in (True, False):
        lanes: dict[str, list[Launch]] = {}
        for launch in todo:
            if ("," in launch.gpus) == several:
                lanes.setdefault(launch.gpus, []).append(launch)
        _bench_lanes(run, lanes)


def _bench_lanes(run: Run, lanes: dict[str, list[Launch]]) -> None:
    """Each lane's servers in turn."""

    def lane(todo: list[Launch]) -> None:
        for launch in todo:
            if run.left < 30:
                return
            found = bench.run(
                run.servers[launch.name].url, run.model(launch.kind), run.out / f"{launch.name}-bench",
                tuple((rate, seconds * run.share) for rate, seconds in launch.bench), run.left,
            )  # fmt: skip
            run.results[launch.name]["bench"], run.results[launch.name]["bench_error"] = found
            run.say(f"{launch.name}: {[row['request_rate'] for row in found[0]]} requests/s {found[1]}")

    with ThreadPoolExecutor(len(lanes) or 1) as pool:
        list(pool.map(lane, lanes.values()))


def kills(run: Run, launches: list[Launch]) -> None:
    """Kill one scheduler of the servers that are to be."""
    for launch in launches:
        if launch.killed and launch.name in run.serving() and run.left > 20:
            killed = faults.kill_scheduler(run.servers[launch.name], min(60.0, run.left - 10))
            run.results[launch.name]["killed"] = killed
            run.say(f"{launch.name}: scheduler killed; ended after {killed.get('ended_after_s')} s")


def loads(run: Run, names: list[str], rounds: int) -> None:
    """The same short loads on each server in turn, the others idle; unmeasured ones compile what is missing."""
    for number in range(rounds + 1):
        for at_once, count in LOADS:
            for name in names:
                if run.left < 20:
                    return
                url, timeout = run.servers[name].url, min(60, run.left)
                found = asks.load(url, at_once, count if number else 2 * at_once, timeout=timeout)
                if number:
                    run.results[name].setdefault("loads", []).append(found | {"round": number})
                    run.say(f"{name}: {at_once} at once, {found['tokens_per_s']} tokens/s")


def updates(run: Run, names: list[str]) -> None:
    """Other weights into running servers, then the first ones again; the answers after each."""
    for name in reversed(names):
        kind, url = run.results[name]["kind"], run.servers[name].url
        steps = run.results[name]["updates"] = []
        for seed in (OTHER_SEED, 0):
            if run.left < 20 or not (run.model(kind, seed) / "config.json").exists():
                return
            step = asks.update(url, str(run.model(kind, seed)), timeout=min(60, run.left))
            steps.append(step | {"seed": seed})
            run.say(f"{name}: update to seed {seed}: {step['success']}")
            if not step["success"]:
                break
            step["alone"] = [asks.generate(url, ids, timeout=min(30, run.left)) for ids in asks.PROMPTS[:4]]
            steps[-1] = step | {"seed": seed}
