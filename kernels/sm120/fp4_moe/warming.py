"""Compiling every kernel that a layer can need, before the first forward."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import os
import time
from typing import Any, NamedTuple

import torch

from . import layer, runtime
from .host import program, schedule
from .weights.prepared import PreparedWeights

MAX_WORKERS = 8  # several ranks of a server may compile at the same time


class WarmUp(NamedTuple):
    """What `warm_up` did: distinct compiled kernels, and the seconds that it took."""

    kernels: int
    seconds: float


def warm_up(
    w: PreparedWeights,
    top_k: int,
    max_tokens: int | None = None,
    *,
    activation: str = "bf16",
    swiglu_limit: float | None = 10.0,
    batch_invariant: bool = False,
) -> WarmUp:
    """Compile and load what `fp4_moe` can need for 1 to `max_tokens` tokens (None: any number) of such a layer.

    Launches nothing and allocates no tensor. Threads share the work, one for each core up to 8. Afterwards a
    compilation on this device is reported as a warning. A layer like an earlier one costs nothing. Foreseen are int32
    ids, and no `out` or one at a 16-byte aligned address with rows a multiple of 16 values apart; x may lie anywhere.

    Raises ValueError for an argument that `fp4_moe` would refuse, and for weights that are not on a GPU.
    """
    device = w.w13.device
    if not runtime.is_compiled(device):
        raise ValueError(f"w is on {device}, expected a GPU: only there kernels are compiled")
    if not 0 < top_k <= layer.MAX_TOP_K:
        raise ValueError(f"top_k is {top_k!r}, expected 1 to {layer.MAX_TOP_K}")
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens!r}, expected at least 1, or None")
    layer.check_activation(activation, w.format)
    mxfp8 = activation == "mxfp8"
    form = program.Form(
        device=device,
        tokens=1,
        top_k=top_k,
        experts=w.num_experts,
        hidden=w.hidden_size,
        inter=w.intermediate_size,
        ids=torch.int32,
        x_stride=w.hidden_size,
        y_stride=w.hidden_size,
        y_aligned=True,
        limit=layer.checked_limit(swiglu_limit),
        factor=1.0,
        mxfp8=mxfp8,
        fp8=mxfp8 and program.has_native_fp8(device),
        batch_invariant=batch_invariant,
        wide_scales=w.wide_scales,
        format=w.format,
    )
    chunk = schedule.chunk_tokens(top_k, w.hidden_size, w.intermediate_size)
    return _warm_up(form, chunk if max_tokens is None else min(chunk, max_tokens))


@functools.cache
def _warm_up(form: program.Form, max_tokens: int) -> WarmUp:
    begun, index = time.perf_counter(), form.device.index or 0
    needed = needed_steps(form, max_tokens)

    def compile_one(step: program.Step) -> None:
        with torch.cuda.device(index):  # a thread begins on device 0
            step.kernel.ready(index, step.args, step.options, early=True)

    workers = min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    with concurrent.futures.ThreadPoolExecutor(workers, "fp4_moe-compile") as pool:
        for _ in pool.map(compile_one, needed.values()):
            pass  # raises what the compilation raised
    runtime.warmed(index)
    return WarmUp(len(needed), time.perf_counter() - begun)


def needed_steps(form: program.Form, max_tokens: int) -> dict[tuple[Any, ...], program.Step]:
    """One step for each compiled kernel that 1 to max_tokens tokens need, under a key that tells them apart.

    Token counts with the same tiles have the same kernels: counts and strides are no part of a compilation.
    """
    found: dict[tuple[Any, ...], program.Step] = {}
    seen = set()
    for tokens in range(1, max_tokens + 1):
        f = dataclasses.replace(form, tokens=tokens)
        tiles = dataclasses.replace(program.plan(f), groups=0)
        if tiles in seen:
            continue
        seen.add(tiles)
        for step in program.steps(f)[0]:
            found.setdefault((step.kernel, *step.kernel.key(f.device.index or 0, step.args, step.options)), step)
    return found
