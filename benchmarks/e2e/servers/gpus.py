"""Which GPUs a launch gets: its numbers count the GPUs that this process may see."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from benchmarks.e2e.servers.launches import Launch

VARIABLE = "CUDA_VISIBLE_DEVICES"


def of(launch: Launch, listed: str | None) -> str:
    """`CUDA_VISIBLE_DEVICES` of a launch's server.

    Args:
        launch: which; "0,1" are the first two GPUs that this process may see.
        listed: this process's own `CUDA_VISIBLE_DEVICES`; None where it is not set and all GPUs are seen.

    Raises:
        ValueError: the launch wants more GPUs than are listed.
    """
    if listed is None:
        return launch.gpus
    seen = list(takewhile(lambda gpu: gpu not in ("", "-1"), (part.strip() for part in listed.split(","))))
    numbers = [int(number) for number in launch.gpus.split(",")]
    if max(numbers) >= len(seen):
        raise ValueError(
            f"{launch.name} runs on GPUs {launch.gpus} of {VARIABLE}, which is {listed!r}; "
            f"expected a list of at least {max(numbers) + 1}"
        )
    return ",".join(seen[number] for number in numbers)


def used(launches: Iterable[Launch], listed: str | None) -> list[str]:
    """The GPUs that any of the launches runs on, in the order of their numbers."""
    numbers = {number: gpu for la in launches for number, gpu in _pairs(la, listed)}
    return [numbers[number] for number in sorted(numbers)]


def _pairs(launch: Launch, listed: str | None) -> Iterable[tuple[int, str]]:
    return zip(map(int, launch.gpus.split(",")), of(launch, listed).split(","), strict=True)
