"""The layer as one call: checks, then routing, two products and the reduction."""

from __future__ import annotations

import contextlib
import math

import torch

from . import launch, schedule
from .prepare import PreparedWeights

ACTIVATIONS = ("bf16", "mxfp8")
MAX_TOP_K = 32


def mxfp4_moe(
    x: torch.Tensor,
    w: PreparedWeights,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    swiglu_limit: float | None = 10.0,
    routed_scaling_factor: float = 1.0,
    activation: str = "bf16",
    out: torch.Tensor | None = None,
    *,
    batch_invariant: bool = False,
    check_ids: bool = False,
) -> torch.Tensor:
    """y[t] = factor * sum over slots k of topk_weights[t, k] * expert(topk_ids[t, k])(x[t]), bf16 [T, H].

    x             bf16 [T, H], rows contiguous; never written
    w             from `prepare_weights`
    topk_ids      int32|int64 [T, K], K <= 32; an id outside 0 .. E-1 (-1: not on this rank) contributes nothing,
                  whatever its weight
    topk_weights  float32 [T, K]
    swiglu_limit  an expert is w2 (silu(min(w1 x, L)) * clip(w3 x, -L, L)); None clamps nothing
    activation    "bf16" (W4A16), or "mxfp8" (W4A8): x and the intermediate rounded to e4m3 with one scale per 32
    out           bf16 [T, H] to write to and return, not overlapping x
    batch_invariant  a token's result has the same bits whatever else is in the batch
    check_ids     raise ValueError for ids outside -1 .. E-1 (synchronises; for debugging)

    Raises ValueError for anything else. Does not synchronise with the device and may be captured in a CUDA graph; the
    workspace comes from torch's allocator. The same inputs give the same bits on every run. x must stay below 2**71 in
    magnitude. On CPU tensors the same kernels run in Triton's interpreter.
    """
    tokens, top_k = _check_call(x, w, topk_ids, topk_weights, activation, out)
    limit = _checked_limit(swiglu_limit)
    factor = _checked_factor(routed_scaling_factor)
    if check_ids:
        _check_ids(topk_ids, w.num_experts)
    y = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    if tokens == 0 or top_k == 0:
        return y.zero_()
    x, topk_ids, topk_weights = _rows(x), topk_ids.contiguous(), topk_weights.contiguous()
    layer = launch.Layer(w, limit, factor, activation == "mxfp8", batch_invariant)
    chunk = schedule.chunk_tokens(top_k, w.hidden_size, w.intermediate_size)
    with _current(x.device):
        if tokens <= chunk:
            layer.run(x, topk_ids, topk_weights, y)
            return y
        for start in range(0, tokens, chunk):
            part = slice(start, start + chunk)
            layer.run(x[part], topk_ids[part], topk_weights[part], y[part])
    return y


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device, whichever the tensors are on."""
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        return torch.cuda.device(device)
    return contextlib.nullcontext()


def _rows(x: torch.Tensor) -> torch.Tensor:
    """x itself where the kernels' 16-byte loads can read its rows, else a copy."""
    return x if x.stride(1) == 1 and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0 else x.contiguous().clone()


def _check_call(
    x: torch.Tensor,
    w: PreparedWeights,
    ids: torch.Tensor,
    weights: torch.Tensor,
    activation: str,
    out: torch.Tensor | None,
) -> tuple[int, int]:
    if not isinstance(w, PreparedWeights):
        raise ValueError(f"w is {type(w).__name__}, expected what prepare_weights returns")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}, expected one of {', '.join(map(repr, ACTIVATIONS))}")
    _check_tensor("x", x, (torch.bfloat16,), (None, w.hidden_size), w)
    _check_tensor("topk_ids", ids, (torch.int32, torch.int64), (x.shape[0], None), w)
    if ids.shape[1] > MAX_TOP_K:
        raise ValueError(f"topk_ids has {ids.shape[1]} slots per token, expected at most {MAX_TOP_K}")
    _check_tensor("topk_weights", weights, (torch.float32,), tuple(ids.shape), w)
    if out is not None:
        _check_tensor("out", out, (torch.bfloat16,), tuple(x.shape), w)
        if out.numel() and out.stride(1) != 1:
            raise ValueError(f"out has strides {out.stride()}, expected contiguous rows")
        if out.numel() and out.data_ptr() == x.data_ptr():
            raise ValueError("out is x itself, expected memory of its own (x is read until the end)")
    return x.shape[0], ids.shape[1]


def _check_tensor(
    name: str, t: torch.Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int | None, ...], w: PreparedWeights
) -> None:
    if not isinstance(t, torch.Tensor) or t.dtype not in dtypes:
        given = t.dtype if isinstance(t, torch.Tensor) else type(t).__name__
        raise ValueError(f"{name} is {given}, expected {' or '.join(str(d) for d in dtypes)}")
    if t.dim() != len(shape) or any(e is not None and e != n for e, n in zip(shape, t.shape, strict=True)):
        expected = ", ".join("any" if e is None else str(e) for e in shape)
        raise ValueError(f"{name} has shape {tuple(t.shape)}, expected ({expected})")
    if t.device != w.w13.device:
        raise ValueError(f"{name} is on {t.device}, expected {w.w13.device} like the weights")


def _checked_limit(limit: float | None) -> float:
    if limit is None:
        return math.inf
    if not isinstance(limit, (int, float)) or not limit > 0:
        raise ValueError(f"swiglu_limit is {limit!r}, expected a positive number or None")
    return float(limit)


def _checked_factor(factor: float) -> float:
    if not isinstance(factor, (int, float)) or not math.isfinite(factor):
        raise ValueError(f"routed_scaling_factor is {factor!r}, expected a finite number")
    return float(factor)


def _check_ids(ids: torch.Tensor, experts: int) -> None:
    bad = (ids < -1) | (ids >= experts)
    if bool(bad.any()):
        raise ValueError(f"topk_ids holds {int(ids[bad][0])}, expected -1 to {experts - 1}")
