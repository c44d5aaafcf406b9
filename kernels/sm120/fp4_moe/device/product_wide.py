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
def accumulate_wide(
    w_ptr, s_ptr, x_rows, valid, tile, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    SB: tl.constexpr, STAGES: tl.constexpr, NV: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """float32 [BN, BT]: rows tile * BN ... of one expert's matrix [N, K] times the activations at x_rows [BT].

    N must be a multiple of BN, K of 64 SB. NV: with ASM, times 2**-7.
    """
    tl.static_assert(N % BN == 0 and K % (64 * SB) == 0)
    row = tile * BN + tl.arange(0, BN)
    column, block = tl.arange(0, SB * 32), tl.arange(0, SB)
    w_offs = ((row // 32) * (16 * K) + (row % 32) * 32)[:, None] + (column // 32 * 1024 + column % 32)[None, :]
    s_offs = ((row // 32) * (K // 2) + row % 32)[:, None] + (block * 32)[None, :]
    x_ptrs = x_rows[None, :] + (column // 32 * 64 + column % 32)[:, None]
    acc = tl.full((BN, BT), 0.0, tl.float32)
    for _ in tl.range(0, K // (64 * SB), num_stages=STAGES):
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
        w_offs += SB * 1024
        s_offs += SB * 32
        x_ptrs += SB * 64
    if ASM and not NV:
        acc *= 2.0**64
    return acc
