"""The layer as one call: checks, then routing, two products and the reduction."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import torch

from . import runtime
from .host import program, schedule, tuning
from .weights.formats import FORMATS, Format
from .weights.prepared import Facts, PreparedWeights

ACTIVATIONS = ("bf16", "mxfp8")
MAX_TOP_K = 32
TYPES = {
    "x": (torch.bfloat16,),
    "topk_ids": (torch.int32, torch.int64),
    "topk_weights": (torch.float32,),
    "out": (torch.bfloat16,),
}


def fp4_moe(
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
    w             from `prepare_mxfp4` or `prepare_nvfp4`
    topk_ids      int32|int64 [T, K], K <= 32; an id outside 0 .. E-1 (-1: not on this rank) contributes nothing,
                  whatever its weight
    topk_weights  float32 [T, K]
    swiglu_limit  an expert is w2 (silu(min(w1 x, L)) * clip(w3 x, -L, L)); None clamps nothing
    activation    "bf16" (W4A16), or "mxfp8" (W4A8, MXFP4 weights only): x and the intermediate rounded to e4m3 with one
                  scale per 32
    out           bf16 [T, H] to write to and return; shares no memory with x, topk_ids or topk_weights
    batch_invariant  a token's result has the same bits whatever else is in the batch
    check_ids     raise ValueError for ids outside -1 .. E-1 (synchronises; for debugging)

    Raises ValueError for anything else. Does not synchronise with the device and may be captured in a CUDA graph; the
    workspace comes from torch's allocator. The same inputs give the same bits on every run. With MXFP4 x must
    stay below 2**71 in magnitude; with "mxfp8" and no swiglu_limit the intermediate below 448 * 2**112, about 2**120.
    On CPU tensors the same kernels run in Triton's interpreter.
    """
    limit, factor = checked_limit(swiglu_limit), _checked_factor(routed_scaling_factor)
    _check_types(x, w, topk_ids, topk_weights, out)
    check_activation(activation, w.format)
    at_x, at_ids, at_out = x.data_ptr(), topk_ids.data_ptr(), 0 if out is None else out.data_ptr()
    call = _call(  # by place, which is looked up half a microsecond faster than by name
        (x.dtype, x.shape, x.stride(), x.device, at_x % 16 == 0),
        (topk_ids.dtype, topk_ids.shape, topk_ids.stride(), topk_ids.device, at_ids % 16 == 0),
        (topk_weights.dtype, topk_weights.shape, topk_weights.stride(), topk_weights.device),
        None if out is None else (out.dtype, out.shape, out.stride(), out.device, at_out % 16 == 0),
        w.facts,
        limit,
        factor,
        activation == "mxfp8",
        bool(batch_invariant),
        tuning._forced[-1] if tuning._forced else None,
    )
    if check_ids:
        _check_ids(topk_ids, w.num_experts)
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    else:
        at_weights, end = topk_weights.data_ptr(), at_out + call.spans[3]
        apart_from_x = end <= at_x or at_x + call.spans[0] <= at_out
        apart_from_ids = end <= at_ids or at_ids + call.spans[1] <= at_out
        if not (apart_from_x and apart_from_ids and (end <= at_weights or at_weights + call.spans[2] <= at_out)):
            _check_apart(out, x, topk_ids, topk_weights)
    if not call.parts:
        return out.zero_()
    if call.copies:
        copy_x, copy_ids, copy_weights = call.copies
        x = x.clone(memory_format=torch.contiguous_format) if copy_x else x
        topk_ids = topk_ids.clone(memory_format=torch.contiguous_format) if copy_ids else topk_ids
        topk_weights = topk_weights.contiguous() if copy_weights else topk_weights
    # Triton launches on the current device, whichever the tensors are on.
    if call.index is None or call.index == torch.cuda.current_device():
        call.run(x, w, topk_ids, topk_weights, out)
    else:
        with torch.cuda.device(call.index):
            call.run(x, w, topk_ids, topk_weights, out)
    return out


class About(NamedTuple):
    """All of a tensor that decides how it is handled; `aligned` to 16 bytes, where that matters."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device
    aligned: bool = True


@dataclasses.dataclass(frozen=True)
class Call:
    """A checked call: the GPU's index (None: CPU), which of x, ids and weights to copy, and each chunk's program.

    spans: bytes from the first to behind the last element of x, ids, weights and out (0 without one).
    """

    index: int | None
    spans: tuple[int, ...]
    copies: tuple[bool, bool, bool] | None
    parts: tuple[tuple[slice, program.Program], ...]

    def run(
        self, x: torch.Tensor, w: PreparedWeights, ids: torch.Tensor, weights: torch.Tensor, y: torch.Tensor
    ) -> None:
        if len(self.parts) == 1:
            self.parts[0][1].run(x, w, ids, weights, y)
            return
        for part, piece in self.parts:
            piece.run(x[part], w, ids[part], weights[part], y[part])


@functools.lru_cache(maxsize=1024)
def _call(
    x_about: tuple[Any, ...],
    ids_about: tuple[Any, ...],
    weights_about: tuple[Any, ...],
    out_about: tuple[Any, ...] | None,
    facts: Facts,
    limit: float,
    factor: float,
    mxfp8: bool,
    batch_invariant: bool,
    forced: object,
) -> Call:
    """Check the tensors and prepare their launches; kept, because nothing here depends on addresses or values.

    forced: tiles that `tuning` tries just now; part of the key because programs are made with them.
    """
    x, ids, weights = About(*x_about), About(*ids_about), About(*weights_about)
    out = None if out_about is None else About(*out_about)
    device, experts, hidden, inter, wide_scales, weight_format = facts
    _check_call(x, ids, weights, out, device, hidden)
    (tokens, top_k), fp8 = ids.shape, mxfp8 and program.has_native_fp8(device)
    copy_x = not (x.aligned and _rows_are_readable(x))
    x_stride = hidden if copy_x or tokens <= 1 else x.strides[0]
    y_stride = hidden if out is None or tokens <= 1 else out.strides[0]
    copies = (copy_x, not (ids.aligned and _is_contiguous(ids)), not _is_contiguous(weights))
    index = device.index if runtime.is_compiled(device) else None
    chunk = schedule.chunk_tokens(max(1, top_k), hidden, inter)
    parts = []
    for start in range(0, tokens if top_k else 0, chunk):
        form = program.Form(
            device=device,
            tokens=min(chunk, tokens - start),
            top_k=top_k,
            experts=experts,
            hidden=hidden,
            inter=inter,
            ids=ids.dtype,
            x_stride=x_stride,
            y_stride=y_stride,
            y_aligned=out is None or out.aligned,
            limit=limit,
            factor=factor,
            mxfp8=mxfp8,
            fp8=fp8,
            batch_invariant=batch_invariant,
            wide_scales=wide_scales,
            format=FORMATS[weight_format],
        )
        with torch.cuda.device(index) if index is not None else contextlib.nullcontext():
            parts.append((slice(start, start + chunk), program.Program(form)))
    spans = tuple(0 if t is None else _span(t.shape, t.strides) * t.dtype.itemsize for t in (x, ids, weights, out))
    return Call(index, spans, copies if any(copies) else None, tuple(parts))


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to behind the last; strides are not negative."""
    return sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1 if all(shape) else 0


def _check_apart(out: torch.Tensor, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
    """Raise ValueError if out shares memory with an input; its range of addresses meets that of one."""
    for name, t in (("x", x), ("topk_ids", ids), ("topk_weights", weights)):
        if _share_bytes(out, t):
            raise ValueError(f"out shares memory with {name}, which is read until the end; expected memory of its own")


def _share_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether matrices have a byte in common: exact for columns of one buffer, else by the range of all their rows."""
    spans = [_span(t.shape, t.stride()) * t.element_size() for t in (a, b)]
    ahead = b.data_ptr() - a.data_ptr()
    if ahead >= spans[0] or -ahead >= spans[1] or 0 in spans:
        return False
    step, other = (t.stride(0) * t.element_size() for t in (a, b))
    widths = [_span(t.shape[1:], t.stride()[1:]) * t.element_size() for t in (a, b)]
    if step != other or step < max(widths):
        return True
    return ahead % step < widths[0] or ahead % step + widths[1] > step


def _rows_are_readable(x: About) -> bool:
    """Whether the kernels' 16-byte loads can read the rows, the same compiled kernel for every stride."""
    return x.strides[1] == 1 and (x.shape[0] == 1 or (x.strides[0] % 16 == 0 and x.strides[0] < 2**31))


def _is_contiguous(t: About) -> bool:
    rows, columns = t.shape
    return (columns <= 1 or t.strides[1] == 1) and (rows <= 1 or t.strides[0] == columns)


def _check_types(x: object, w: object, ids: object, weights: object, out: object) -> None:
    tensor = torch.Tensor
    good = isinstance(x, tensor) and isinstance(ids, tensor) and isinstance(weights, tensor)
    if isinstance(w, PreparedWeights) and good and (out is None or isinstance(out, tensor)):
        return
    if not isinstance(w, PreparedWeights):
        raise ValueError(f"w is {type(w).__name__}, expected what prepare_mxfp4 or prepare_nvfp4 returns")
    for name, t in (("x", x), ("topk_ids", ids), ("topk_weights", weights), ("out", out)):
        if not isinstance(t, torch.Tensor) and not (name == "out" and t is None):
            raise ValueError(f"{name} is {type(t).__name__}, expected a tensor of {' or '.join(map(str, TYPES[name]))}")


def _check_call(x: About, ids: About, weights: About, out: About | None, device: torch.device, hidden: int) -> None:
    _check_tensor("x", x, (None, hidden), device)
    tokens = x.shape[0]
    _check_tensor("topk_ids", ids, (tokens, None), device)
    if ids.shape[1] > MAX_TOP_K:
        raise ValueError(f"topk_ids has {ids.shape[1]} slots per token, expected at most {MAX_TOP_K}")
    _check_tensor("topk_weights", weights, tuple(ids.shape), device)
    if out is not None:
        _check_tensor("out", out, tuple(x.shape), device)
        if tokens and out.strides[1] != 1:
            raise ValueError(f"out has strides {out.strides}, expected contiguous rows")
        if tokens > 1 and out.strides[0] < hidden:
            raise ValueError(f"out has strides {out.strides}, expected rows that do not overlap")


def _check_tensor(name: str, t: About, shape: tuple[int | None, ...], device: torch.device) -> None:
    if t.dtype not in TYPES[name]:
        raise ValueError(f"{name} is {t.dtype}, expected {' or '.join(map(str, TYPES[name]))}")
    if len(t.shape) != len(shape) or any(e is not None and e != n for e, n in zip(shape, t.shape, strict=True)):
        expected = ", ".join("any" if e is None else str(e) for e in shape)
        raise ValueError(f"{name} has shape {tuple(t.shape)}, expected ({expected})")
    if t.device != device:
        raise ValueError(f"{name} is on {t.device}, expected {device} like the weights")


def check_activation(activation: str, weights: Format) -> None:
    """Raise ValueError unless weights of this format can be multiplied by activations of this kind."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}, expected one of {', '.join(map(repr, ACTIVATIONS))}")
    if activation == "mxfp8" and not weights.has_mxfp8:
        raise ValueError(
            f"activation is 'mxfp8', expected 'bf16' with {weights.title} weights: no block-scaled MMA takes 8-bit "
            f"operands with a scale for each {weights.group} values"
        )


def checked_limit(limit: float | None) -> float:
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
