"""Timing of one call on a CUDA GPU with nothing of it in L2.

Before each timed replay a buffer of more than twice any L2 is read. Reading, not writing: a flush that writes would
leave L2 full of changed lines, and the timed kernel would pay for writing them back to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

FLUSH_BYTES = 512 * 2**20  # above twice the L2 of any card (RTX PRO 6000: 128 MiB)


class Flush:
    """Calling it reads FLUSH_BYTES on the GPU, in the current stream. Its time hides the launch of what follows."""

    def __init__(self, device: Any = "cuda") -> None:
        import torch

        self._buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device=device)
        self._sum = torch.zeros((), dtype=torch.float32, device=device)

    def __call__(self) -> None:
        import torch

        torch.sum(self._buffer, dim=0, out=self._sum)


def captured(call: Callable[[], Any]) -> Any:
    """A CUDA graph of one call, which has run (and so compiled) before."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def times_us(calls: Sequence[Callable[[], Any]], before: Callable[[], Any]) -> list[float]:
    """Microseconds of each call, run in this order, `before` in front of each and outside its time."""
    import torch

    pairs = []
    for call in calls:
        before()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) * 1e3 for begin, end in pairs]
