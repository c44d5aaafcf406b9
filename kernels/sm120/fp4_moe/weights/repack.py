"""From the checkpoint's weights to the kernel's layout and back, in place.

Prepared layout, for a matrix of N rows and K columns (N and K multiples of 32), per expert:

* rows of w13 are reordered so that each 16 rows are 8 gate rows and the 8 up rows of the same channels: both halves of
  a channel then sit in one thread's accumulators, 8 rows apart, and SwiGLU needs no exchange between threads;
* rows form tiles of 32. A tile is one run of 16 K bytes: for each superblock of 64 columns 32 rows x 32 bytes (words as
  in `layout`), then, if K is an odd multiple of 32, 32 rows x 16 bytes for the last block (its first 16 codes as lo,
  the others as hi);
* scales follow in the same order. MXFP4: a tile is a run of K bytes, per superblock 32 rows x (even, odd), then 32 rows
  x 1. NVFP4: a run of 2 K bytes, per superblock 32 rows x (even's first and second 16, odd's), then 32 rows x 2; the
  bytes are encoded anew (`nvfp4`).

Nothing is padded and no bit is dropped, so the repack is a bijection on each expert's bytes. Work proceeds in slices,
so that the memory needed beside the weights stays small (about 80 MiB for the largest published expert, 7168 x 3072;
the tests hold 128 MiB).
"""

from __future__ import annotations

import torch

from . import layout
from .checks import SLICE_BYTES
from .formats import NVFP4, Format
from .nvfp4 import from_e5m3, to_e5m3


def repack(w: torch.Tensor, scale: torch.Tensor, kind: Format, *, gated: bool, forward: bool) -> None:
    """Codes uint8 [E, N, K/2] and scale bytes [E, N, K/G], contiguous, to the kernel's layout or back.

    gated: the rows are those of gate and up.
    """
    experts, rows, half = w.shape
    step = max(1, 2 * SLICE_BYTES // (rows * half))
    for first in range(0, experts, step):
        part = slice(first, first + step)
        for t, scales_of in ((w[part], None), (scale[part], kind)):
            if forward:
                _expert_forward(t, 2 * half, gated, scales_of)
            else:
                _expert_backward(t, 2 * half, gated, scales_of)


def _expert_forward(t: torch.Tensor, columns: int, gated: bool, scales_of: Format | None) -> None:
    """t uint8 [experts, rows, bytes of a row], codes or a format's scales, rewritten tile by tile."""
    experts, rows, width = t.shape
    source = t.clone()
    if gated:
        source = source.view(experts, 2, rows // 16, 8, width).transpose(1, 2)
    source = source.reshape(experts * rows // 32, 32, width)
    tiles = t.view(experts * rows // 32, 32 * width)
    for part in _slices(tiles):
        rows32 = source[part]
        tiles[part] = _scale_tile(rows32, columns, scales_of) if scales_of else _code_tile(rows32, columns)


def _expert_backward(t: torch.Tensor, columns: int, gated: bool, scales_of: Format | None) -> None:
    experts, rows, width = t.shape
    source = t.clone().view(experts * rows // 32, 32 * width)
    ordered = source.view(experts * rows // 32, 32, width)
    for part in _slices(source):
        tile = source[part]
        ordered[part] = _scale_rows(tile, columns, scales_of) if scales_of else _code_rows(tile, columns)
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


def _scale_tile(rows: torch.Tensor, columns: int, kind: Format) -> torch.Tensor:
    """uint8 [tiles, 32, K/G] -> uint8 [tiles, 32 K/G]."""
    tiles, each = rows.shape[0], kind.scale_bytes
    if kind == NVFP4:
        rows = to_e5m3(rows)
    full = columns // 64 * each
    superblocks = rows[..., :full].reshape(tiles, 32, -1, each).transpose(1, 2).reshape(tiles, -1)
    return torch.cat([superblocks, rows[..., full:].reshape(tiles, -1)], dim=1)


def _scale_rows(tile: torch.Tensor, columns: int, kind: Format) -> torch.Tensor:
    """The inverse of `_scale_tile`."""
    tiles, each = tile.shape[0], kind.scale_bytes
    full = columns // 64 * 32 * each
    superblocks = tile[:, :full].reshape(tiles, -1, 32, each).transpose(1, 2).reshape(tiles, 32, -1)
    rows = torch.cat([superblocks, tile[:, full:].reshape(tiles, 32, -1)], dim=2)
    return from_e5m3(rows) if kind == NVFP4 else rows
