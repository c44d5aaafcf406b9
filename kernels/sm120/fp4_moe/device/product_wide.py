"""W4A16 for many tokens: an ordinary tile of a matrix product, weights scaled before they are multiplied.

With 64 or more tokens a group, scaling each weight once is cheaper than scaling each sum per block, and the tile no
longer fits one warp's registers, so the warps divide rows and tokens among themselves. Scaled weights are bf16 times
2**-64, exact for MXFP4's scale bytes 66 .. 192, which includes `formats.NARROW_SCALES`; other layers keep to
`product_bf16`. NVFP4's are bf16 times 2**-7, exact for every scale.

The decode happens in the MMA's operand registers, four neighbouring bytes a thread. SM90's wgmma wants two, which would
tear the words apart: see `product_wgmma`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decode import load_bf16_codes, nv_factors, nv_scaled, scale_to_float32


@triton.jit
def _scaled(codes, byte, BN: tl.constexpr, SB: tl.constexpr, ASM: tl.constexpr):
    """Decoded codes [BN, SB * 32] times their scales [BN, SB] (times 2**-64 with ASM, which decodes to 2**-126)."""
    if ASM:  # noqa: SIM108 - Triton compiles one branch
        factor = ((byte + 62) << 7).to(tl.uint16).to(tl.bfloat16, bitcast=True)  # 2**(byte - 65)
    else:
        factor = scale_to_float32(byte, False)
    factor = tl.reshape(tl.broadcast_to(factor[:, :, None], (BN, SB, 32)), (BN, SB * 32))
    if ASM:
        y = tl.inline_asm_elementwise(
            "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [codes, factor], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        y = codes * factor
    return y


@triton.jit
def _nv_scaled(codes, four, ODD: tl.constexpr, BN: tl.constexpr, SB: tl.constexpr, ASM: tl.constexpr):
    """Decoded codes [BN, SB * 32] of even or odd blocks times their scales; four: [BN, SB] as `nv_factors` has it."""
    return nv_scaled(codes, tl.reshape(nv_factors(four, ODD, 16, BN, SB, ASM), (BN, SB * 32)), ASM)


@triton.jit
def _add_superblocks(
    acc, w_ptr, w_offs, s_ptr, s_offs, x_ptrs, column, valid, BN: tl.constexpr, SB: tl.constexpr, NV: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """acc plus the products of SB superblocks: codes at w_offs [BN, SB * 32], `column` the last dimension's index."""
    lo, hi = load_bf16_codes(w_ptr, w_offs, column[None, :], None, False, ASM)
    scales = tl.load(s_ptr + s_offs).to(tl.int32)
    x_lo = tl.load(x_ptrs, mask=valid[None, :], other=0.0)
    x_hi = tl.load(x_ptrs + 32, mask=valid[None, :], other=0.0)
    if not ASM:
        x_lo, x_hi = x_lo.to(tl.float32), x_hi.to(tl.float32)
    if NV:
        acc = tl.dot(_nv_scaled(lo, scales, 0, BN, SB, ASM), x_lo, acc)
        acc = tl.dot(_nv_scaled(hi, scales, 1, BN, SB, ASM), x_hi, acc)
    else:
        acc = tl.dot(_scaled(lo, scales & 255, BN, SB, ASM), x_lo, acc)
        acc = tl.dot(_scaled(hi, (scales >> 8) & 255, BN, SB, ASM), x_hi, acc)
    return acc


@triton.jit
def _add_half(
    acc, w_ptr, s_ptr, x_rows, valid, rows32, row, K: tl.constexpr, BN: tl.constexpr, NV: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """acc plus the products of the last 32 columns: 16 codes as lo, 16 as hi, and zeros behind them.

    MXFP4 has one scale for both, NVFP4 one each.
    """
    byte = tl.arange(0, 32)
    inside = (byte < 16)[None, :]
    w_offs = (rows32 * (16 * K) + K // 64 * 1024 + row % 32 * 16)[:, None] + byte[None, :]
    lo, hi = load_bf16_codes(w_ptr, w_offs, byte[None, :], inside, True, ASM)
    x_ptrs = x_rows[None, :] + (K // 64 * 64 + byte)[:, None]
    x_mask = valid[None, :] & (byte < 16)[:, None]
    x_lo, x_hi = tl.load(x_ptrs, mask=x_mask, other=0.0), tl.load(x_ptrs + 16, mask=x_mask, other=0.0)
    if not ASM:
        x_lo, x_hi = x_lo.to(tl.float32), x_hi.to(tl.float32)
    scale = last_scales(s_ptr, rows32, row, K, NV)[:, None]
    if NV:
        four = (scale & 255) * 0x0101 | (scale >> 8) * 0x01010000
        acc = tl.dot(_nv_scaled(lo, four, 0, BN, 1, ASM), x_lo, acc)
        acc = tl.dot(_nv_scaled(hi, four, 1, BN, 1, ASM), x_hi, acc)
    else:
        acc = tl.dot(_scaled(lo, scale, BN, 1, ASM), x_lo, acc)
        acc = tl.dot(_scaled(hi, scale, BN, 1, ASM), x_hi, acc)
    return acc


@triton.jit
def last_scales(s_ptr, rows32, row, K: tl.constexpr, NV: tl.constexpr):
    """int32, of row's shape: the scale bytes of a row's last 32 columns, NVFP4's second one eight bits higher."""
    place = rows32 * K + K // 64 * 64 + row % 32
    kind = tl.uint16 if NV else tl.uint8
    return tl.load(s_ptr.to(tl.pointer_type(kind)) + place).to(tl.int32)


@triton.jit
def first_of(tile, N: tl.constexpr, BN: tl.constexpr, PER: tl.constexpr):
    """The first row of a tile, counted in runs of PER rows.

    Where N is no multiple of BN the last tile ends with the matrix and begins in the one before. Rows beyond the end
    would need addresses, and registers, of their own: with Triton 3.7.1 NVFP4's tile spilled.
    """
    first = tile * (BN // PER)
    if N % BN != 0:
        first = tl.minimum(first, (N - BN) // PER)
    return first


@triton.jit
def accumulate_wide(
    w_ptr, s_ptr, x_rows, valid, tile, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    SB: tl.constexpr, STAGES: tl.constexpr, NV: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """float32 [BN, BT]: rows from `first_of` on of one expert's matrix [N, K] times the activations at x_rows [BT].

    N and K must be multiples of 32, N at least BN. What steps of SB (1 or 2) superblocks leave of K, one and half of
    one at most, is multiplied before the loop, which then has all registers. NV: with ASM, times 2**-7.
    """
    SUPERBLOCKS: tl.constexpr = K // 64
    tl.static_assert(SB <= 2)
    row = first_of(tile, N, BN, 1) + tl.arange(0, BN)
    rows32 = row // 32
    column, block = tl.arange(0, SB * 32), tl.arange(0, SB)
    w_offs = (rows32 * (16 * K) + (row % 32) * 32)[:, None] + (column // 32 * 1024 + column % 32)[None, :]
    s_offs = (rows32 * (K // 2) + row % 32)[:, None] + (block * 32)[None, :]
    x_ptrs = x_rows[None, :] + (column // 32 * 64 + column % 32)[:, None]
    acc = tl.full((BN, BT), 0.0, tl.float32)
    if K % 64 != 0:
        acc = _add_half(acc, w_ptr, s_ptr, x_rows, valid, rows32, row, K, BN, NV, ASM)
    if SUPERBLOCKS % SB != 0:
        one = tl.arange(0, 32)
        last_w = (rows32 * (16 * K) + (SUPERBLOCKS - 1) * 1024 + row % 32 * 32)[:, None] + one[None, :]
        last_s = (rows32 * (K // 2) + (SUPERBLOCKS - 1) * 32 + row % 32)[:, None]
        last_x = x_rows[None, :] + ((SUPERBLOCKS - 1) * 64 + one)[:, None]
        acc = _add_superblocks(acc, w_ptr, last_w, s_ptr, last_s, last_x, one, valid, BN, 1, NV, ASM)
    for _ in tl.range(0, SUPERBLOCKS // SB, num_stages=STAGES):
        acc = _add_superblocks(acc, w_ptr, w_offs, s_ptr, s_offs, x_ptrs, column, valid, BN, SB, NV, ASM)
        w_offs += SB * 1024
        s_offs += SB * 32
        x_ptrs += SB * 64
    if ASM and not NV:
        acc *= 2.0**64
    return acc
