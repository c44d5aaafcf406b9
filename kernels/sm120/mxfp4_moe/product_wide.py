"""W4A16 for many tokens: an ordinary tile of a matrix product, weights scaled before they are multiplied.

With 64 or more tokens a group, scaling each weight once is cheaper than scaling each sum per block, and the tile no
longer fits one warp's registers, so the warps divide rows and tokens among themselves. Scaled weights are bf16 times
2**-64, exact for scale bytes 66 .. 192, which includes `prepare.NARROW_SCALES`; other layers keep to `product_bf16`.

On SM120 the decode happens in the MMA's operand registers, four neighbouring bytes a thread. SM90's wgmma wants two,
which would tear the words apart, so there KEEP pins the decode to the layout of the load (Triton does not move assembly
that it must assume impure) and the scaled weights go to the MMA's registers through shared memory. With 64 or more
tokens both halves go into one product a step: Triton leaves the last product of a step running beside the next step's
decode, but waits for any other at once. One product of 64 columns holds the registers that two steps of that need.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decode import load_bf16_codes, scale_to_float32


@triton.jit
def _scaled(codes, byte, BN: tl.constexpr, SB: tl.constexpr, KEEP: tl.constexpr, ASM: tl.constexpr):
    """Decoded codes [BN, SB * 32] times their scales [BN, SB] (times 2**-64 with ASM, which decodes to 2**-126)."""
    if ASM:  # noqa: SIM108 - Triton compiles one branch
        factor = ((byte + 62) << 7).to(tl.uint16).to(tl.bfloat16, bitcast=True)  # 2**(byte - 65)
    else:
        factor = scale_to_float32(byte, False)
    factor = tl.reshape(tl.broadcast_to(factor[:, :, None], (BN, SB, 32)), (BN, SB * 32))
    if not ASM:
        y = codes * factor
    elif KEEP:
        y = tl.inline_asm_elementwise(
            "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [codes, factor], dtype=tl.bfloat16, is_pure=False, pack=2
        )
    else:
        y = tl.inline_asm_elementwise(
            "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [codes, factor], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    return y


@triton.jit
def _scales(
    s_ptr, s_offs, tile, N: tl.constexpr, BN: tl.constexpr, SB: tl.constexpr, MASKED: tl.constexpr, ONE: tl.constexpr
):  # fmt: skip
    """int32 [BN, SB]: a superblock's two scale bytes in the low half; with ONE loaded for two rows at once."""
    ROWS: tl.constexpr = BN // 2 if ONE else BN
    if MASKED:
        row = (tile * ROWS + tl.arange(0, ROWS))[:, None]
        pair = tl.load(s_ptr + s_offs, mask=row < (N // 2 if ONE else N), other=0).to(tl.int32)
    else:
        pair = tl.load(s_ptr + s_offs).to(tl.int32)
    if ONE:
        pair = tl.reshape(tl.permute(tl.join(pair & 0xFFFF, pair >> 16), (0, 2, 1)), (BN, SB))
    return pair


@triton.jit
def accumulate_wide(
    w_ptr, s_ptr, x_rows, valid, tile, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    SB: tl.constexpr, STAGES: tl.constexpr, KEEP: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """float32 [BN, BT]: rows tile * BN ... of one expert's matrix [N, K] times the activations at x_rows [BT].

    K must be a multiple of 64 SB.
    """
    row = tile * BN + tl.arange(0, BN)
    column, block = tl.arange(0, SB * 32), tl.arange(0, SB)
    w_offs = ((row // 32) * (16 * K) + (row % 32) * 32)[:, None] + (column // 32 * 1024 + column % 32)[None, :]
    s_offs = ((row // 32) * (K // 2) + row % 32)[:, None] + (block * 32)[None, :]
    x_ptrs = x_rows[None, :] + (column // 32 * 64 + column % 32)[:, None]
    acc = tl.full((BN, BT), 0.0, tl.float32)
    MASKED: tl.constexpr = N % BN != 0
    ONE: tl.constexpr = KEEP and BT >= 64
    if ONE:
        x_ptrs = x_rows[None, :] + tl.arange(0, SB * 64)[:, None]
        # Two rows' scales at once: four bytes, the least that is copied asynchronously.
        two = tile * (BN // 2) + tl.arange(0, BN // 2)
        s_ptr = s_ptr.to(tl.pointer_type(tl.int32))
        s_offs = ((two // 16) * (K // 4) + two % 16)[:, None] + (block * 16)[None, :]
    for _ in tl.range(0, K // (64 * SB), num_stages=STAGES):
        lo, hi = load_bf16_codes(w_ptr, w_offs, column[None, :], (row < N)[:, None], MASKED, KEEP, ASM)
        pair = _scales(s_ptr, s_offs, tile, N, BN, SB, MASKED, ONE)
        if ONE:
            low, high = _scaled(lo, pair & 255, BN, SB, KEEP, ASM), _scaled(hi, (pair >> 8) & 255, BN, SB, KEEP, ASM)
            w = tl.permute(tl.reshape(tl.join(low, high), (BN, SB, 32, 2)), (0, 1, 3, 2))
            x = tl.load(x_ptrs, mask=valid[None, :], other=0.0)
            if not ASM:
                x = x.to(tl.float32)
            acc = tl.dot(tl.reshape(w, (BN, SB * 64)), x, acc)
        else:
            x_lo = tl.load(x_ptrs, mask=valid[None, :], other=0.0)
            x_hi = tl.load(x_ptrs + 32, mask=valid[None, :], other=0.0)
            if not ASM:
                x_lo, x_hi = x_lo.to(tl.float32), x_hi.to(tl.float32)
            acc = tl.dot(_scaled(lo, pair & 255, BN, SB, KEEP, ASM), x_lo, acc)
            acc = tl.dot(_scaled(hi, (pair >> 8) & 255, BN, SB, KEEP, ASM), x_hi, acc)
        w_offs += SB * 1024
        s_offs += SB * 16 if ONE else SB * 32
        x_ptrs += SB * 64
    if ASM:
        acc *= 2.0**64
    return acc
