"""The layer as one call: checks, then routing, two products and the reduction."""

from __future__ import annotations

import functools
import math

import torch

from . import gemm, reduce, routing, schedule
from .prepare import PreparedWeights

ACTIVATIONS = ("bf16", "mxfp8")
MAX_TOP_K = 32
# Above this limit the intermediate could leave the range of the fast kernels (|h| <= limit**2 < 2**27; see `gemm`).
NARROW_LIMIT = 2.0**13


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
    topk_ids      int32|int64 [T, K], K <= 32; an id outside 0 .. E-1 (such as -1: not on this rank) contributes nothing,
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
    for start in range(0, tokens, schedule.CHUNK_TOKENS):
        part = slice(start, start + schedule.CHUNK_TOKENS)
        _run(x[part], w, topk_ids[part], topk_weights[part], limit, factor, activation, y[part], batch_invariant)
    return y


def _run(
    x: torch.Tensor,
    w: PreparedWeights,
    ids: torch.Tensor,
    weights: torch.Tensor,
    limit: float,
    factor: float,
    activation: str,
    y: torch.Tensor,
    invariant: bool,
) -> None:
    tokens, hidden, inter, experts, top_k = x.shape[0], w.hidden_size, w.intermediate_size, w.num_experts, ids.shape[1]
    device, routes = x.device, tokens * top_k
    quantized = activation == "mxfp8"
    wide = w.wide_scales or limit > NARROW_LIMIT
    p = schedule.plan(tokens, top_k, experts, hidden, inter, schedule.sm_count(device), quantized, invariant)
    pdl = _has_pdl(device)
    compiled = device.type == "cuda"
    common = {"PDL": pdl, "launch_pdl": pdl}
    if quantized:
        rounded = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=device)
        grid = (tokens, -(-hidden // 1024))
        reduce.round_rows_to_mxfp8.launch(grid, device, x, rounded, x.stride(0), K=hidden, BLOCKS=32, ASM=compiled, **common)
        x = rounded
    groups_ids, counts = ids, ids
    if not p.scan:
        groups_ids = torch.empty(routes, dtype=torch.int32, device=device)
        counts = torch.empty(2 * experts, dtype=torch.int32, device=device)
        chunk = min(1024, _power_of_two(routes))
        routing.sort_routes.launch(
            (experts,), device, ids, groups_ids, counts, routes, experts, CHUNK=chunk, **common
        )  # fmt: skip
    tables = {
        "RP": _power_of_two(routes) if p.scan else 1,
        "EP": 1 if p.scan else _power_of_two(experts),
        "SCAN": p.scan,
        "SCALED": p.scaled and not wide,
        "WIDE": wide,
        "ASM": compiled,
        "PREFETCH": pdl and p.prefetch > 0,
        **common,
    }
    h = torch.empty((routes, inter), dtype=torch.bfloat16, device=device)
    o = torch.empty((routes, hidden), dtype=p.partial, device=device)
    t = p.gate_up
    gemm.gate_up.launch(
        (p.groups * -(-2 * inter // t.rows),), device, x, w.w13, _pairs(w.w13_scale), h, groups_ids, counts, x.stride(0),
        limit, routes, experts, TOP_K=top_k, HIDDEN=hidden, INTER=inter, BN=t.rows, BT=t.tokens, SB=t.superblocks,
        STAGES=t.stages, QUANT=quantized,
        num_warps=t.warps, **tables,
    )  # fmt: skip
    t = p.down
    gemm.down.launch(
        (p.groups * -(-hidden // t.rows),), device, h, w.w2, _pairs(w.w2_scale), o, groups_ids, counts, routes, experts,
        p.prefetch, HIDDEN=hidden, INTER=inter, BN=t.rows, BT=t.tokens, SB=t.superblocks, STAGES=t.stages, num_warps=t.warps, **tables,
    )  # fmt: skip
    width = 1024 if hidden >= 1024 else _power_of_two(hidden)
    reduce.combine.launch(
        (tokens, -(-hidden // width)), device, o, ids, weights, y, factor, experts, y.stride(0), TOP_K=top_k, HIDDEN=hidden,
        BH=width, ASM=compiled, **common,
    )  # fmt: skip


def _pairs(scale: torch.Tensor) -> torch.Tensor:
    return scale.view(-1).view(torch.int16)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0 else x.contiguous().clone()


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


@functools.cache
def _has_pdl(device: torch.device) -> bool:
    """Programmatic dependent launch exists from compute capability 9.0 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


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
