"""From the checkpoint's weights to the kernel's layout and back, in place.

Prepared layout, for a matrix of N rows and K columns (N and K multiples of 32), per expert:

* rows of w13 are reordered so that each 16 rows are 8 gate rows and the 8 up rows of the same channels: both halves of
  a channel then sit in one thread's accumulators, 8 rows apart, and SwiGLU needs no exchange between threads;
* rows form tiles of 32. A tile is one run of 16 K bytes: for each superblock of 64 columns 32 rows x 32 bytes (words as
  in `layout`), then, if K is an odd multiple of 32, 32 rows x 16 bytes for the last block (its first 16 codes as lo,
  the others as hi);
* scales follow in the same order: a tile is a run of K bytes, per superblock 32 rows x (even, odd), then 32 rows x 1.

Nothing is padded and no bit is dropped, so the repack is a bijection on each expert's bytes and `restore` is
its exact inverse. Work proceeds in slices, so that the memory needed beside the weights stays small (about 80 MiB for
the largest published expert, 7168 x 3072; the tests hold 128 MiB).
"""

from __future__ import annotations

import dataclasses

import torch

from . import layout

SLICE_BYTES = 4 << 20
# Outside these scale bytes (2**-27 .. 2**65) the kernels use more instructions for more range (see `product_bf16`).
NARROW_SCALES = (100, 192)


@dataclasses.dataclass(frozen=True)
class PreparedWeights:
    """One layer's routed experts in the kernel's layout; the tensors share storage with what was prepared.

    w13 uint8 [E, 2I, H/2], w13_scale uint8 [E, 2I, H/32], w2 uint8 [E, H, I/2], w2_scale uint8 [E, H, I/32]: the shapes
    are the checkpoint's, the order of the bytes within an expert is not. `wide_scales`: some scale byte is below 100 or
    above 192, so the kernels must be exact at the ends of the float32 range. A CUDA graph keeps the choice that it was
    captured with: capture again if weights replaced in place change this value.
    """

    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor
    num_experts: int
    hidden_size: int
    intermediate_size: int
    wide_scales: bool


def prepare_mxfp4(
    w13: torch.Tensor, w13_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor
) -> PreparedWeights:
    """Repack the experts of one layer in place.

    w13        uint8|int8 [E, 2I, H/2], contiguous: gate rows, then up rows; two e2m1 codes a byte, low nibble = even k
    w13_scale  uint8|float8_e8m0fnu|float32 [E, 2I, H/32]: 2**(byte - 127) per 32 codes; float32 must be exact powers of
               two from 2**-127 to 2**127, or NaN
    w2         uint8|int8 [E, H, I/2];  w2_scale [E, H, I/32], as above. H and I are multiples of 32.

    The given w13, w2 and byte scales hold the prepared bytes afterwards and must not be used otherwise; float32 scales
    are converted to new tensors. Raises ValueError (and changes nothing) for any other type, shape, layout or value.
    Synchronises with the device once.
    """
    experts, hidden, inter = _check_weights(w13, w2)
    s13 = _scale_bytes("w13_scale", w13_scale, (experts, 2 * inter, hidden // 32), w13.device)
    s2 = _scale_bytes("w2_scale", w2_scale, (experts, hidden, inter // 32), w13.device)
    wide = scales_are_wide(s13, s2)
    w13, w2 = w13.view(torch.uint8), w2.view(torch.uint8)
    with torch.no_grad():
        _repack(w13, s13, gated=True, forward=True)
        _repack(w2, s2, gated=False, forward=True)
    return PreparedWeights(w13, s13, w2, s2, experts, hidden, inter, wide)


def scales_are_wide(w13_scale: torch.Tensor, w2_scale: torch.Tensor) -> bool:
    """Whether weights with these scale bytes (uint8, any shape and layout) are `wide_scales`. Synchronises once."""
    return bool(_outside_narrow(w13_scale) | _outside_narrow(w2_scale))


def restore(w: PreparedWeights) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Undo `prepare_mxfp4` in place: (w13, w13_scale, w2, w2_scale), uint8, in the checkpoint's layout.

    `w` must not be used afterwards. Experts may then be overwritten and prepared again.
    """
    with torch.no_grad():
        _repack(w.w13, w.w13_scale, gated=True, forward=False)
        _repack(w.w2, w.w2_scale, gated=False, forward=False)
    return w.w13, w.w13_scale, w.w2, w.w2_scale


def _check_weights(w13: torch.Tensor, w2: torch.Tensor) -> tuple[int, int, int]:
    for name, w in (("w13", w13), ("w2", w2)):
        if not isinstance(w, torch.Tensor) or w.dtype not in (torch.uint8, torch.int8):
            raise ValueError(f"{name} is {_describe(w)}, expected a tensor of uint8 or int8 (two e2m1 codes a byte)")
        if w.dim() != 3 or 0 in w.shape:
            raise ValueError(f"{name} has shape {tuple(w.shape)}, expected three dimensions, none of them 0")
        _check_storage(name, w)
    experts, rows, hidden = w13.shape[0], w13.shape[1], 2 * w13.shape[2]
    if rows % 64:
        raise ValueError(f"w13 has {rows} rows, expected 2 I (gate, then up) with I a multiple of 32")
    if hidden % 32:
        raise ValueError(f"w13 has {w13.shape[2]} bytes a row, so H = {hidden}; expected a multiple of 32")
    expected = (experts, hidden, rows // 4)
    if tuple(w2.shape) != expected:
        raise ValueError(f"w2 has shape {tuple(w2.shape)}, expected {expected} (E, H, I/2) to fit w13")
    if w2.device != w13.device:
        raise ValueError(f"w2 is on {w2.device}, expected {w13.device} like w13")
    return experts, hidden, rows // 2


def _check_storage(name: str, t: torch.Tensor) -> None:
    if not t.is_contiguous():
        raise ValueError(f"{name} has strides {t.stride()}, expected a contiguous tensor (it is repacked in place)")
    if t.data_ptr() % 16:
        raise ValueError(f"{name} starts at address {t.data_ptr():#x}, expected a multiple of 16 bytes")


def _describe(t: object) -> str:
    return str(t.dtype) if isinstance(t, torch.Tensor) else type(t).__name__


def _scale_bytes(name: str, scale: torch.Tensor, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    kinds = (torch.uint8, torch.float8_e8m0fnu, torch.float32)
    if not isinstance(scale, torch.Tensor) or scale.dtype not in kinds:
        raise ValueError(f"{name} is {_describe(scale)}, expected uint8, float8_e8m0fnu or float32 powers of two")
    if tuple(scale.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(scale.shape)}, expected {shape} (one scale per 32 codes of a row)")
    if scale.device != device:
        raise ValueError(f"{name} is on {scale.device}, expected {device} like w13")
    if scale.dtype != torch.float32:
        scale = scale.view(torch.uint8)
        _check_storage(name, scale)
        return scale
    out = torch.empty(shape, dtype=torch.uint8, device=device)
    flat, target = scale.reshape(-1), out.view(-1)
    for start in range(0, flat.numel(), SLICE_BYTES):
        part = flat[start : start + SLICE_BYTES]
        target[start : start + SLICE_BYTES] = _exponent_bytes(name, part)
    return out


def _exponent_bytes(name: str, scale: torch.Tensor) -> torch.Tensor:
    bits = scale.contiguous().view(torch.int32)
    nan = torch.isnan(scale)
    smallest = bits == 0x00400000  # 2**-127, a float32 subnormal, is byte 0
    exponent = bits >> 23
    fits = nan | smallest | ((bits & 0x7FFFFF) == 0) & (exponent >= 1) & (exponent <= 254)
    if not bool(fits.all()):
        value = float(scale[~fits][0])
        raise ValueError(f"{name} has the value {value!r}, expected exact powers of two from 2**-127 to 2**127, or NaN")
    exponent = torch.where(smallest, 0, torch.where(nan, 255, exponent))
    return exponent.to(torch.uint8)


def _outside_narrow(scale: torch.Tensor) -> torch.Tensor:
    low, high = NARROW_SCALES
    return (scale.amin() < low) | (scale.amax() > high)


def _repack(w: torch.Tensor, scale: torch.Tensor, gated: bool, forward: bool) -> None:
    experts, rows, half = w.shape
    step = max(1, 2 * SLICE_BYTES // (rows * half))
    for first in range(0, experts, step):
        part = slice(first, first + step)
        for t, is_codes in ((w[part], True), (scale[part], False)):
            if forward:
                _expert_forward(t, 2 * half, gated, is_codes)
            else:
                _expert_backward(t, 2 * half, gated, is_codes)


def _expert_forward(t: torch.Tensor, columns: int, gated: bool, is_codes: bool) -> None:
    """t uint8 [experts, rows, bytes of a row], rewritten tile by tile."""
    experts, rows, width = t.shape
    source = t.clone()
    if gated:
        source = source.view(experts, 2, rows // 16, 8, width).transpose(1, 2)
    source = source.reshape(experts * rows // 32, 32, width)
    tiles = t.view(experts * rows // 32, 32 * width)
    for part in _slices(tiles):
        tiles[part] = (_code_tile if is_codes else _scale_tile)(source[part], columns)


def _expert_backward(t: torch.Tensor, columns: int, gated: bool, is_codes: bool) -> None:
    experts, rows, width = t.shape
    source = t.clone().view(experts * rows // 32, 32 * width)
    ordered = source.view(experts * rows // 32, 32, width)
    for part in _slices(source):
        ordered[part] = (_code_rows if is_codes else _scale_rows)(source[part], columns)
    if gated:
        ordered = ordered.view(experts, rows // 16, 2, 8, width).transpose(1, 2)
    t.copy_(ordered.reshape(t.shape))


def _slices(tiles: torch.Tensor) -> list[slice]:
    step = max(1, SLICE_BYTES // tiles.shape[1])
    return [slice(i, i + step) for i in range(0, tiles.shape[0], step)]


def _code_tile(rows: torch.Tensor, columns: int) -> torch.Tensor:
    """uint8 [tiles, 32, K/2] in the checkpoint's order -> uint8 [tiles, 16 K]."""
    tiles, full = rows.shape[0], columns // 64 * 32
    parts = []
    for piece, words in ((rows[..., :full], 8), (rows[..., full:], 4)):
        if piece.shape[-1]:
            pairs = piece.contiguous().view(torch.int16).view(tiles, 32, -1, 2, words)
            packed = pairs.permute(0, 2, 1, 4, 3).contiguous().view(torch.int32)
            parts.append(layout.permute_bits(packed, layout.TO_PREPARED).view(torch.uint8).reshape(tiles, -1))
    return torch.cat(parts, dim=1)


def _code_rows(tile: torch.Tensor, columns: int) -> torch.Tensor:
    """The inverse of `_code_tile`."""
    tiles, full = tile.shape[0], columns // 64 * 1024
    parts = []
    for piece, words in ((tile[:, :full], 8), (tile[:, full:], 4)):
        if piece.shape[-1]:
            packed = piece.contiguous().view(torch.int32)
            pairs = layout.permute_bits(packed, layout.TO_CHECKPOINT).view(torch.int16)
            pairs = pairs.view(tiles, -1, 32, words, 2).permute(0, 2, 1, 4, 3).contiguous()
            parts.append(pairs.view(torch.uint8).reshape(tiles, 32, -1))
    return torch.cat(parts, dim=2)


def _scale_tile(rows: torch.Tensor, columns: int) -> torch.Tensor:
    """uint8 [tiles, 32, K/32] -> uint8 [tiles, K]."""
    tiles, full = rows.shape[0], columns // 64 * 2
    pairs = rows[..., :full].reshape(tiles, 32, -1, 2).transpose(1, 2).reshape(tiles, -1)
    return torch.cat([pairs, rows[..., full:].reshape(tiles, -1)], dim=1)


def _scale_rows(tile: torch.Tensor, columns: int) -> torch.Tensor:
    """The inverse of `_scale_tile`."""
    tiles, full = tile.shape[0], columns // 64 * 64
    pairs = tile[:, :full].reshape(tiles, -1, 32, 2).transpose(1, 2).reshape(tiles, 32, -1)
    return torch.cat([pairs, tile[:, full:].reshape(tiles, 32, -1)], dim=2)
