"""W4A8: one expert's BN weight rows times a group's e4m3 activations, by the native block-scaled MMA (QMMA on SM120).

Codes are widened to e4m3 in registers (value * 2**-6; the activations' scales make up for it) and go to `tl.dot_scaled`
with their own e8m0 bytes as they are in the checkpoint: the hardware applies both scales, NaN and 2**-127 included.
Triton has no native path for e4m3 x e2m1 on SM120, and none for e4m3 x e4m3 on SM121 before 3.8; it then emulates in
bf16.

Activations come from `quantize_rows` or the first product's epilogue: bytes in `layout.FP8_ORDER` within each four, and
per superblock of 64 columns a pair of scale bytes (the last block's byte twice where K is an odd multiple of 32).
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..weights import layout

_FP8 = layout.fp8_terms()
FP8_LO, FP8_HI = tl.constexpr(layout.decode_ptx(_FP8[:1])), tl.constexpr(layout.decode_ptx(_FP8[1:]))


@triton.jit
def _dot_pair(w, pair, x_lo, x_hi, x_pair, acc):
    """Two block-scaled products: even blocks, then odd blocks. w holds packed words, the pairs int16 scale pairs."""
    lo = tl.inline_asm_elementwise(FP8_LO, "=&r,r", [w], dtype=tl.uint8, is_pure=True, pack=4)
    hi = tl.inline_asm_elementwise(FP8_HI, "=&r,r", [w], dtype=tl.uint8, is_pure=True, pack=4)
    even, odd = (pair & 255).to(tl.uint8), ((pair >> 8) & 255).to(tl.uint8)
    x_even, x_odd = (x_pair & 255).to(tl.uint8), ((x_pair >> 8) & 255).to(tl.uint8)
    acc = tl.dot_scaled(lo, even, "e4m3", x_lo, x_even, "e4m3", acc)
    return tl.dot_scaled(hi, odd, "e4m3", x_hi, x_odd, "e4m3", acc)


@triton.jit
def _last_block(acc, w_ptr, s_ptr, x_rows, xs_rows, row, valid, N: tl.constexpr, K: tl.constexpr):
    """The last 32 columns where K is an odd multiple of 32: 16 codes as lo, 16 as hi, zeros beside them."""
    byte = tl.arange(0, 32)
    w_offs = ((row // 32) * (16 * K) + K // 64 * 1024 + (row % 32) * 16)[:, None] + byte[None, :]
    w = tl.load(w_ptr + w_offs, mask=(row < N)[:, None] & (byte < 16)[None, :], other=0)
    s_offs = (row // 32) * (K // 2) + (K // 64 * 64 + row % 32) // 2
    scale = (tl.load(s_ptr + s_offs, mask=row < N, other=0).to(tl.int32) >> 8 * (row % 2)) & 255
    x_mask = (byte < 16)[:, None] & valid[None, :]
    x_ptrs = x_rows[None, :] + (K // 64 * 64 + byte)[:, None]
    x_lo, x_hi = tl.load(x_ptrs, mask=x_mask, other=0), tl.load(x_ptrs + 16, mask=x_mask, other=0)
    x_pair = tl.load(xs_rows + K // 64, mask=valid, other=0)
    return _dot_pair(w, (scale * 257)[:, None], x_lo, x_hi, x_pair[:, None], acc)


@triton.jit
def accumulate_fp8(
    w_ptr, s_ptr, x_rows, xs_rows, valid, tile, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    SB: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """float32 [BN, BT]: rows tile * BN ... of one expert's matrix [N, K] times the activations at x_rows [BT]."""
    row = tile * BN + tl.arange(0, BN)
    column, block = tl.arange(0, SB * 32), tl.arange(0, SB)
    w_offs = ((row // 32) * (16 * K) + (row % 32) * 32)[:, None] + (column // 32 * 1024 + column % 32)[None, :]
    s_offs = ((row // 32) * (K // 2) + row % 32)[:, None] + (block * 32)[None, :]
    x_ptrs = x_rows[None, :] + (column // 32 * 64 + column % 32)[:, None]
    xs_ptrs = xs_rows[:, None] + block[None, :]
    acc = tl.full((BN, BT), 0.0, tl.float32)
    SUPERBLOCKS: tl.constexpr = K // 64
    MASKED: tl.constexpr = SUPERBLOCKS % SB != 0 or N % BN != 0
    for step in tl.range(0, (SUPERBLOCKS + SB - 1) // SB, num_stages=STAGES):
        if MASKED:
            inside = step * SB + block < SUPERBLOCKS
            column_inside = step * SB + column // 32 < SUPERBLOCKS
            w = tl.load(w_ptr + w_offs, mask=(row < N)[:, None] & column_inside[None, :], other=0)
            pair = tl.load(s_ptr + s_offs, mask=(row < N)[:, None] & inside[None, :], other=0)
            x_mask, xs_mask = valid[None, :] & column_inside[:, None], valid[:, None] & inside[None, :]
        else:
            w = tl.load(w_ptr + w_offs)
            pair = tl.load(s_ptr + s_offs)
            x_mask, xs_mask = valid[None, :], valid[:, None]
        x_lo = tl.load(x_ptrs, mask=x_mask, other=0)
        x_hi = tl.load(x_ptrs + 32, mask=x_mask, other=0)
        x_pair = tl.load(xs_ptrs, mask=xs_mask, other=0)
        acc = _dot_pair(w, pair, x_lo, x_hi, x_pair, acc)
        w_offs += SB * 1024
        s_offs += SB * 32
        x_ptrs += SB * 64
        xs_ptrs += SB
    if K % 64 != 0:
        acc = _last_block(acc, w_ptr, s_ptr, x_rows, xs_rows, row, valid, N, K)
    return acc
