"""A progress bar on a terminal, lines elsewhere: what is running, and how long it has left where that is known."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[..., None]  # what is running, the share that is done, and seconds left


def _says(text: str, left: float | None) -> str:
    if left is None:
        return text
    minutes, seconds = divmod(max(0, round(left)), 60)
    return f"{text}, {minutes}:{seconds:02d} left"


@contextmanager
def bar() -> Iterator[Progress]:
    """What shows progress on stderr while it is open."""
    said: list[str] = []

    def line(text: str, share: float, left: float | None = None) -> None:
        if said[-1:] != [text]:
            said[:] = [text]
            print(f"{100 * share:3.0f} %  {_says(text, left)}", file=sys.stderr, flush=True)

    if sys.stderr is None or not sys.stderr.isatty():
        yield line
        return
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]  # SGLang needs it; the overlay needs nothing
    except ImportError:
        yield line
        return
    with tqdm(total=100, file=sys.stderr, bar_format="{bar:16} {n:.0f} % {desc}", leave=False) as shown:

        def move(text: str, share: float, left: float | None = None) -> None:
            shown.n = 100 * share
            shown.set_description_str(_says(text, left))

        yield move
