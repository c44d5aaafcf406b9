"""W4A16 for many tokens on SM90: `product_wide`'s sums through wgmma, weights decoded where it wants them.

wgmma takes its weights from registers: of 16 neighbouring columns a thread holds the codes 2t, 2t + 1, 2t + 8 and
2t + 9 of a row. A prepared word holds four neighbouring codes of either half of its superblock, so the columns of each
32 are multiplied in another order, `layout.WGMMA_ORDER`, in which those four are one word's. The activations must come
in this order: x from `reduce.reorder_rows`, the intermediate from the first product's epilogue. Then a word goes from
shared memory to the thread that decodes it and to the MMA without a further exchange (benchmarks/NOTES.md, item 13).

The scales' range is that of `product_wide`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..weights import layout
from .decode import nv_factor, nv_factors, picked_value, scale_to_float32
from .product_wide import first_of, last_scales

_BF16 = layout.bf16_terms()
# A word and a scale as two equal bf16 in; scaled pairs of codes out.
SCALED_EVEN, SCALED_ODD = (tl.constexpr(layout.scaled_ptx(terms)) for terms in (_BF16[:2], _BF16[2:]))


@triton.jit
def _halves(pairs):
    """int16 [..., 2]: both values of each packed pair."""
    return tl.join((pairs & 0xFFFF).to(tl.int16), ((pairs >> 16) & 0xFFFF).to(tl.int16))


@triton.jit
def _value(words, ELEMENT: tl.constexpr):
    return picked_value(words.to(tl.int64), tl.full(words.shape, ELEMENT, tl.int32))


@triton.jit
def _word_factors(
    scales, ODD: tl.constexpr, BN: tl.constexpr, SB: tl.constexpr, NV: tl.constexpr, ASM: tl.constexpr
):  # fmt: skip
    """[BN, SB * 8]: the scale of each word's codes of the even or odd block; with ASM as two equal bf16 (int32)."""
    if NV:  # the first and the last four words of a superblock have a scale each
        factor = tl.reshape(nv_factors(scales, ODD, 4, BN, SB, ASM), (BN, SB * 8))
    else:
        byte = (scales >> 8) & 255 if ODD else scales & 255
        factor = (byte + 62) * 0x00800080 if ASM else scale_to_float32(byte, False)  # 2**(byte - 65) as bf16, twice
        factor = tl.reshape(tl.broadcast_to(factor[:, :, None], (BN, SB, 8)), (BN, SB * 8))
    return factor


@triton.jit
def _scaled_half(words, factor, ODD: tl.constexpr, ASM: tl.constexpr):
    """[BN, SB * 8, 2, 2]: each word's four codes of the even or odd block times their scale, by place in a pair, pair.

    words, factor: [BN, SB * 8]. With ASM bf16 bits, times 2**-64 or (NVFP4) 2**-7; without, float32.
    """
    if ASM:
        first, second = tl.inline_asm_elementwise(
            SCALED_ODD if ODD else SCALED_EVEN, "=&r,=&r,r,r", [words, factor], (tl.int32, tl.int32), is_pure=True,
            pack=1,
        )  # fmt: skip
        codes = tl.join(_halves(first), _halves(second))
    else:
        first = tl.join(_value(words, 4 * ODD) * factor, _value(words, 4 * ODD + 1) * factor)
        codes = tl.join(first, tl.join(_value(words, 4 * ODD + 2) * factor, _value(words, 4 * ODD + 3) * factor))
    return codes


@triton.jit
def _scaled_weights(words, scales, BN: tl.constexpr, SB: tl.constexpr, NV: tl.constexpr, ASM: tl.constexpr):
    """[BN, SB * 64] in `layout.WGMMA_ORDER`: words [BN, SB * 8], their superblocks' scales [BN, SB] applied."""
    even = _scaled_half(words, _word_factors(scales, 0, BN, SB, NV, ASM), 0, ASM)
    odd = _scaled_half(words, _word_factors(scales, 1, BN, SB, NV, ASM), 1, ASM)
    # Dimensions: row; superblock, half of eight words, word of four; place in a pair, pair; even or odd block.
    w = tl.reshape(tl.join(even, odd), (BN, SB, 2, 4, 2, 2, 2))
    w = tl.reshape(tl.permute(w, (0, 1, 6, 2, 5, 3, 4)), (BN, SB * 64))
    if ASM:
        w = w.to(tl.bfloat16, bitcast=True)
    return w


@triton.jit
def _half_operands(w_ptr, s_ptr, rows32, row, K: tl.constexpr, NV: tl.constexpr):
    """Of the last 32 columns: words [BN, 4] and scales [BN], as `last_scales` has them."""
    w_ptrs = w_ptr.to(tl.pointer_type(tl.int32)) + (rows32 * (4 * K) + K // 64 * 256 + row % 32 * 4)[:, None]
    return tl.load(w_ptrs + tl.arange(0, 4)[None, :]), last_scales(s_ptr, rows32, row, K, NV)


@triton.jit
def _half_weights(words, scales, BN: tl.constexpr, NV: tl.constexpr, ASM: tl.constexpr):
    """[BN, 32] in `layout.WGMMA_ORDER`: words hold the first 16 columns as even and the others as odd block."""
    if NV:
        first, second = nv_factor(scales & 255, ASM), nv_factor(scales >> 8, ASM)
    else:
        first = (scales + 62) * 0x00800080 if ASM else scale_to_float32(scales, False)
        second = first
    even = _scaled_half(words, tl.broadcast_to(first[:, None], (BN, 4)), 0, ASM)
    odd = _scaled_half(words, tl.broadcast_to(second[:, None], (BN, 4)), 1, ASM)
    # Dimensions: row; word of four; place in a pair, pair; first or second 16 columns.
    w = tl.reshape(tl.permute(tl.join(even, odd), (0, 4, 3, 1, 2)), (BN, 32))
    if ASM:
        w = w.to(tl.bfloat16, bitcast=True)
    return w


@triton.jit
def _summed(acc, ASM: tl.constexpr):
    """acc, when no product runs any more.

    Triton would leave products running beside the next step's decode, which then writes registers that they still
    read: results of 128-token tiles were wrong. Code that takes the sums, even none, makes it wait.
    """
    if ASM:
        acc = tl.inline_asm_elementwise("", "=f,0", [acc], tl.float32, is_pure=True, pack=1)
    return acc


@triton.jit
def accumulate_wgmma(
    w_ptr, s_ptr, x_rows, valid, tile, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    SB: tl.constexpr, STAGES: tl.constexpr, TURN: tl.constexpr, NV: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """float32 [BN, BT]: rows from `first_of` on of one expert's matrix [N, K] times the activations at x_rows [BT].

    N must be a multiple of 32 and at least BN, K // 64 one of SB. The last 32 columns of a K that is an odd multiple of
    32 come before the loop: behind it they would cost registers, and half of the 128-token tiles' programs. The
    activations' columns are in `layout.WGMMA_ORDER`. NV: with ASM, times 2**-7. TURN (N a multiple of BN, K of 64 SB):
    each 128 rows begin elsewhere in K (as each 64 of `product_bf16`, for few tokens), where the largest step could, so
    that the order of additions depends on the row alone.
    """
    tl.static_assert(K // 64 % SB == 0 and not (TURN and (N % BN != 0 or K % 64 != 0)))
    row, word, block = first_of(tile, N, BN, 1) + tl.arange(0, BN), tl.arange(0, SB * 8), tl.arange(0, SB)
    rows32 = row // 32
    w_ptrs = w_ptr.to(tl.pointer_type(tl.int32)) + (rows32 * (4 * K) + row % 32 * 8)[:, None]
    w_ptrs += (word // 8 * 256 + word % 8)[None, :]
    if NV:
        s_ptrs = s_ptr + (rows32 * (K // 2) + row % 32)[:, None] + (block * 32)[None, :]
    else:  # two rows' scales at once: four bytes, the least that is copied asynchronously
        two = first_of(tile, N, BN, 2) + tl.arange(0, BN // 2)
        s_ptrs = s_ptr.to(tl.pointer_type(tl.int32)) + ((two // 16) * (K // 4) + two % 16)[:, None]
        s_ptrs += (block * 16)[None, :]
    x_ptrs = x_rows[None, :] + tl.arange(0, SB * 64)[:, None]
    if TURN:
        GRAIN: tl.constexpr = 4 if K % 256 == 0 else 2 if K % 128 == 0 else 1
        tl.static_assert(GRAIN % SB == 0)
        step = tile * BN // 128 % (K // (64 * GRAIN)) * (GRAIN // SB)
        w_ptrs += step * (SB * 256)
        s_ptrs += step * (SB * 32 if NV else SB * 16)
        x_ptrs += step * (SB * 64)
    acc = tl.full((BN, BT), 0.0, tl.float32)
    if K % 64 != 0:
        last_words, last_scale = _half_operands(w_ptr, s_ptr, rows32, row, K, NV)
        last_x = tl.load(x_rows[None, :] + (K // 64 * 64 + tl.arange(0, 32))[:, None], mask=valid[None, :], other=0.0)
        if not ASM:
            last_x = last_x.to(tl.float32)
        acc = _summed(tl.dot(_half_weights(last_words, last_scale, BN, NV, ASM), last_x, acc), ASM)
    for _ in tl.range(0, K // (64 * SB), num_stages=STAGES):
        words, scales = tl.load(w_ptrs), tl.load(s_ptrs)
        x = tl.load(x_ptrs, mask=valid[None, :], other=0.0)
        if not ASM:
            x = x.to(tl.float32)
        if not NV:
            scales = tl.reshape(tl.permute(tl.join(scales & 0xFFFF, scales >> 16), (0, 2, 1)), (BN, SB))
        acc = _summed(tl.dot(_scaled_weights(words, scales, BN, SB, NV, ASM), x, acc), ASM)
        if TURN:
            STEPS: tl.constexpr = K // (64 * SB)
            onward = tl.where(step == STEPS - 1, 1 - STEPS, 1)
            step += onward
            w_ptrs += onward * (SB * 256)
            s_ptrs += onward * (SB * 32 if NV else SB * 16)
            x_ptrs += onward * (SB * 64)
        else:
            w_ptrs += SB * 256
            s_ptrs += SB * 32 if NV else SB * 16
            x_ptrs += SB * 64
    if ASM and not NV:
        acc *= 2.0**64
    return acc


@triton.jit
def in_wgmma_order(v, BLOCKS: tl.constexpr, BT: tl.constexpr):
    """v [BLOCKS * 32, BT] with the rows of each 32 in `layout.WGMMA_ORDER`."""
    v = tl.reshape(v, (BLOCKS, 2, 4, 2, 2, BT))
    return tl.reshape(tl.permute(v, (0, 1, 3, 2, 4, 5)), (BLOCKS * 32, BT))
