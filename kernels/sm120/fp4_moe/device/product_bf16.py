"""W4A16: one expert's BN weight rows times a group's activations, codes widened to bf16 in registers.

The weights are on the M side of the MMA, the tokens on the N side. A program's warps divide K among themselves: the
product is a batched one over SB neighbouring superblocks of 64 columns, one per warp, so each weight and each
activation is read from shared memory by exactly one warp, and the partial sums meet once, after the loop. (Triton gives
the batch dimension of a rank-3 dot to the warps, and lowers it to mma.sync on every architecture, SM90 included.)

MXFP4. Tensor cores see the codes as bf16 without their scales; one multiply-add per accumulator and block of 32 applies
the scale in float32. With many tokens that is more work than scaling the weights first: see `product_wide`.

NVFP4 (NV). With a scale for each 16 codes the sums would take twice as many multiply-adds, so the codes are scaled
instead, two per instruction. A code times an e4m3 scale has at most six significant bits, so the product is exact in
bf16, and the sums stay in the MMA's accumulators over all of K. The scaled codes span 2**-17 .. 2**4 (2**-7 of their
values), so there is one range for all scales, and activations come in as they are.

Range of MXFP4. A decoded code is its value times 2**-126. To keep products away from the bottom of the float32 range,
activations are multiplied by 2**SHIFT on the way in and sums by 2**(126 - SHIFT) on the way out, all exact, for
activations below 2**(127 - SHIFT) in magnitude (larger ones become infinite): SHIFT is 56 for x, and 100 for the
intermediate, which a clamp bounds. WIDE lifts that limit and is exact for every scale byte: codes are brought to their
values, which costs one more multiplication per two weights, and activations come in as they are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decode import load_bf16_codes, nv_factors, nv_scaled, scale_to_float32, times_power_of_two

CODE_SHIFT = tl.constexpr(126)


@triton.jit
def _codes(w_ptr, w_offs, byte, mask, MASKED: tl.constexpr, WIDE: tl.constexpr, ASM: tl.constexpr):
    lo, hi = load_bf16_codes(w_ptr, w_offs, byte, mask, MASKED, ASM)
    if WIDE and ASM:
        lo, hi = times_power_of_two(lo, CODE_SHIFT), times_power_of_two(hi, CODE_SHIFT)
    return lo, hi


@triton.jit
def _activations(ptrs, mask, SHIFT: tl.constexpr, ASM: tl.constexpr):
    x = tl.load(ptrs, mask=mask, other=0.0)
    if not ASM:
        x = x.to(tl.float32)
    elif SHIFT != 0:
        x = times_power_of_two(x, SHIFT)
    return x


@triton.jit
def _last_block(
    acc, w_ptr, s_ptr, x_rows, row, valid, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, SB: tl.constexpr,
    SHIFT: tl.constexpr, WIDE: tl.constexpr, NV: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The last 32 columns where K is an odd multiple of 32: 16 codes as lo, 16 as hi. Batch entry 0 only.

    MXFP4 has one scale for both, NVFP4 one each.
    """
    batch, byte = tl.arange(0, SB), tl.arange(0, 32)
    first = (batch == 0)[:, None, None]
    w_offs = ((row // 32) * (16 * K) + K // 64 * 1024 + (row % 32) * 16)[None, :, None] + byte[None, None, :]
    w_mask = first & (row < N)[None, :, None] & (byte < 16)[None, None, :]
    lo, hi = _codes(w_ptr, w_offs + batch[:, None, None] * 0, byte[None, None, :], w_mask, True, WIDE, ASM)
    s_offs = (row // 32) * (K // 2) + (K // 64 * 64 + row % 32) // 2
    two = tl.load(s_ptr + s_offs, mask=row < N, other=0).to(tl.int32)  # two rows' scales
    if NV:
        scale = (two >> 16 * (row % 2))[None, :] + batch[:, None] * 0
    else:
        scale = ((two >> 8 * (row % 2)) & 255)[None, :] + batch[:, None] * 0
    x_ptrs = x_rows[None, None, :] + (K // 64 * 64) + byte[None, :, None] + batch[:, None, None] * 0
    x_mask = first & (byte < 16)[None, :, None] & valid[None, None, :]
    x_lo, x_hi = _activations(x_ptrs, x_mask, SHIFT, ASM), _activations(x_ptrs + 16, x_mask, SHIFT, ASM)
    if NV:
        # All 16 codes of either half have that half's scale, and what lies behind them is 0.
        four = (scale & 255) * 0x0101 | ((scale >> 8) & 255) * 0x01010000
        lo = nv_scaled(lo, nv_factors(four, 0, 16, SB, BN, ASM), ASM)
        hi = nv_scaled(hi, nv_factors(four, 1, 16, SB, BN, ASM), ASM)
        acc = tl.dot(hi, x_hi, tl.dot(lo, x_lo, acc))
    else:
        factor = tl.where(first, scale_to_float32(scale, WIDE)[:, :, None], 0.0)
        acc += tl.dot(hi, x_hi, tl.dot(lo, x_lo)) * factor
    return acc


@triton.jit
def _add_step(
    acc, lo, hi, scales, x_ptrs, x_mask, BN: tl.constexpr, SB: tl.constexpr, SHIFT: tl.constexpr, WIDE: tl.constexpr,
    NV: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """acc [SB, BN, BT] plus the products of SB superblocks: codes lo, hi [SB, BN, 32], each one's scales [SB, BN]."""
    x_lo = _activations(x_ptrs, x_mask, SHIFT, ASM)
    x_hi = _activations(x_ptrs + 32, x_mask, SHIFT, ASM)
    if NV:
        acc = tl.dot(nv_scaled(lo, nv_factors(scales, 0, 16, SB, BN, ASM), ASM), x_lo, acc)
        acc = tl.dot(nv_scaled(hi, nv_factors(scales, 1, 16, SB, BN, ASM), ASM), x_hi, acc)
    else:
        low, high = tl.dot(lo, x_lo), tl.dot(hi, x_hi)
        acc += low * scale_to_float32(scales & 255, WIDE)[:, :, None]
        acc += high * scale_to_float32((scales >> 8) & 255, WIDE)[:, :, None]
    return acc


@triton.jit
def accumulate(
    w_ptr, s_ptr, x_rows, valid, tile, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    SB: tl.constexpr, UNROLL: tl.constexpr, STAGES: tl.constexpr, SHIFT: tl.constexpr, WIDE: tl.constexpr,
    NV: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """float32 [BN, BT]: rows tile * BN ... of one expert's matrix [N, K] times the activations at x_rows [BT].

    NV: with ASM, times 2**-7. A step is SB superblocks, one pass of the loop UNROLL steps (1 or 2; their number must
    divide by it): the same sums in the same order, with half the waits.
    """
    row = tile * BN + tl.arange(0, BN)
    batch, byte = tl.arange(0, SB), tl.arange(0, 32)
    w_offs = ((row // 32) * (16 * K) + (row % 32) * 32)[None, :, None] + (batch * 1024)[:, None, None]
    w_offs += byte[None, None, :]
    s_row = ((row // 32) * (K // 2) + row % 32)[None, :]
    s_offs = s_row + (batch * 32)[:, None]
    x_ptrs = x_rows[None, None, :] + (batch * 64)[:, None, None] + byte[None, :, None]
    acc = tl.full((SB, BN, BT), 0.0, tl.float32)
    IN: tl.constexpr = 0 if WIDE or NV or not ASM else SHIFT
    OUT: tl.constexpr = 126 - SHIFT if ASM and not (WIDE or NV) else 0
    SUPERBLOCKS: tl.constexpr = K // 64
    STEPS: tl.constexpr = (SUPERBLOCKS + SB - 1) // SB
    MASKED: tl.constexpr = SUPERBLOCKS % SB != 0 or N % BN != 0
    tl.static_assert(UNROLL == 1 or (UNROLL == 2 and not MASKED and STEPS % 2 == 0))
    # Programs of one group read the same activations. Each 64 rows begin elsewhere in K, or all would ask the same
    # slices of L2 for the same lines at the same time: with two tokens that costs a third of the layer's time on an
    # H200 (benchmarks/NOTES.md). The order of additions depends on the row alone.
    step = tile * BN // 64 % max(STEPS, 1)
    w_offs += step * (SB * 1024)
    s_offs += step * (SB * 32)
    x_ptrs += step * (SB * 64)
    for _ in tl.range(0, STEPS // UNROLL, num_stages=STAGES):
        for u in tl.static_range(UNROLL):
            if MASKED:
                inside = step * SB + batch < SUPERBLOCKS
                w_mask = inside[:, None] & (row < N)[None, :]
                x_mask = inside[:, None, None] & valid[None, None, :]
                lo, hi = _codes(w_ptr, w_offs, byte[None, None, :], w_mask[:, :, None], True, WIDE, ASM)
                pair = tl.load(s_ptr + s_offs, mask=w_mask, other=0).to(tl.int32)
            else:
                x_mask = valid[None, None, :]
                lo, hi = _codes(w_ptr, w_offs, byte[None, None, :], None, False, WIDE, ASM)
                if UNROLL == 1 or NV:
                    pair = tl.load(s_ptr + s_offs).to(tl.int32)
                elif u == 0:
                    # One load for both steps' scales: half of one would be two bytes a thread with two warps, and
                    # cp.async's least is four.
                    both = tl.arange(0, 2 * SB)
                    following = tl.where(step == STEPS - 1, 0, step + 1)
                    place = both % SB * 32 + tl.where(both < SB, step, following) * (SB * 32)
                    pairs = tl.load(s_ptr + s_row + tl.multiple_of(place, [32])[:, None]).to(tl.int32)
                    pair, next_pair = tl.split(tl.permute(tl.reshape(pairs, (2, SB, BN)), (1, 2, 0)))
                else:
                    pair = next_pair
            acc = _add_step(acc, lo, hi, pair, x_ptrs, x_mask, BN, SB, IN, WIDE, NV, ASM)
            onward = tl.where(step == STEPS - 1, 1 - STEPS, 1)
            step += onward
            w_offs += onward * (SB * 1024)
            s_offs += onward * (SB * 32)
            x_ptrs += onward * (SB * 64)
    if K % 64 != 0:
        acc = _last_block(acc, w_ptr, s_ptr, x_rows, row, valid, N, K, BN, SB, IN, WIDE, NV, ASM)
    total = tl.sum(acc, 0)
    return total * 2.0**OUT
