"""W4A16: one expert's BN weight rows times a group's activations, codes widened to bf16 in registers.

The weights are on the M side of the MMA, the tokens on the N side. A program's warps divide K among themselves: the
product is a batched one over SB neighbouring superblocks of 64 columns, one per warp, so each weight and each
activation is read from shared memory by exactly one warp, and the partial sums meet once, after the loop. (Triton gives
the batch dimension of a rank-3 dot to the warps, and lowers it to mma.sync on every architecture, SM90 included.)

Tensor cores see the codes as bf16 without their scales; one multiply-add per accumulator and block of 32 applies the
scale in float32. With many tokens that is more work than scaling the weights first: see `product_wide`.

Range. A decoded code is its value times 2**-126. To keep products away from the bottom of the float32 range activations
are multiplied by 2**SHIFT on the way in and sums by 2**(126 - SHIFT) on the way out, all exact, for activations below
2**(127 - SHIFT) in magnitude (larger ones become infinite): SHIFT is 56 for x, and 100 for the intermediate, which a
clamp bounds. WIDE lifts that limit and is exact for every scale byte; it costs one more multiplication per two weights
and one per sum and block.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decode import load_bf16_codes, scale_to_float32, times_power_of_two

WIDE_SHIFT = tl.constexpr(63)


@triton.jit
def _codes(w_ptr, w_offs, byte, mask, MASKED: tl.constexpr, WIDE: tl.constexpr, ASM: tl.constexpr):
    lo, hi = load_bf16_codes(w_ptr, w_offs, byte, mask, MASKED, ASM)
    if WIDE and ASM:
        lo, hi = times_power_of_two(lo, WIDE_SHIFT), times_power_of_two(hi, WIDE_SHIFT)
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
    acc, w_ptr, s_ptr, x_rows, row, valid, N: tl.constexpr, K: tl.constexpr, SB: tl.constexpr, SHIFT: tl.constexpr,
    WIDE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The last 32 columns where K is an odd multiple of 32: 16 codes as lo, 16 as hi, one scale. Batch entry 0 only."""
    batch, byte = tl.arange(0, SB), tl.arange(0, 32)
    first = (batch == 0)[:, None, None]
    w_offs = ((row // 32) * (16 * K) + K // 64 * 1024 + (row % 32) * 16)[None, :, None] + byte[None, None, :]
    w_mask = first & (row < N)[None, :, None] & (byte < 16)[None, None, :]
    lo, hi = _codes(w_ptr, w_offs + batch[:, None, None] * 0, byte[None, None, :], w_mask, True, WIDE, ASM)
    s_offs = (row // 32) * (K // 2) + (K // 64 * 64 + row % 32) // 2
    pair = tl.load(s_ptr + s_offs, mask=row < N, other=0).to(tl.int32)
    scale = ((pair >> 8 * (row % 2)) & 255)[None, :] + batch[:, None] * 0
    x_ptrs = x_rows[None, None, :] + (K // 64 * 64) + byte[None, :, None] + batch[:, None, None] * 0
    x_mask = first & (byte < 16)[None, :, None] & valid[None, None, :]
    x_lo, x_hi = _activations(x_ptrs, x_mask, SHIFT, ASM), _activations(x_ptrs + 16, x_mask, SHIFT, ASM)
    factor = tl.where(first, scale_to_float32(scale, WIDE)[:, :, None], 0.0)
    product = tl.dot(hi, x_hi, tl.dot(lo, x_lo))
    if WIDE and ASM:
        product *= 2.0**WIDE_SHIFT
    return acc + product * factor


@triton.jit
def _add_step(
    acc, lo, hi, pair, x_ptrs, x_mask, SHIFT: tl.constexpr, WIDE: tl.constexpr, ASM: tl.constexpr
):  # fmt: skip
    """acc [SB, BN, BT] plus the products of SB superblocks: codes lo, hi [SB, BN, 32], scale pairs [SB, BN]."""
    x_lo = _activations(x_ptrs, x_mask, SHIFT, ASM)
    x_hi = _activations(x_ptrs + 32, x_mask, SHIFT, ASM)
    low, high = tl.dot(lo, x_lo), tl.dot(hi, x_hi)
    if WIDE and ASM:  # before the scale, or the product could underflow
        low, high = low * 2.0**WIDE_SHIFT, high * 2.0**WIDE_SHIFT
    acc += low * scale_to_float32(pair & 255, WIDE)[:, :, None]
    acc += high * scale_to_float32((pair >> 8) & 255, WIDE)[:, :, None]
    return acc


@triton.jit
def accumulate(
    w_ptr, s_ptr, x_rows, valid, tile, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    SB: tl.constexpr, UNROLL: tl.constexpr, STAGES: tl.constexpr, SHIFT: tl.constexpr, WIDE: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """float32 [BN, BT]: rows tile * BN ... of one expert's matrix [N, K] times the activations at x_rows [BT].

    A step is SB superblocks, one pass of the loop UNROLL steps (1 or 2; their number must divide by it): the same sums
    in the same order, with half the waits.
    """
    row = tile * BN + tl.arange(0, BN)
    batch, byte = tl.arange(0, SB), tl.arange(0, 32)
    w_offs = ((row // 32) * (16 * K) + (row % 32) * 32)[None, :, None] + (batch * 1024)[:, None, None]
    w_offs += byte[None, None, :]
    s_row = ((row // 32) * (K // 2) + row % 32)[None, :]
    s_offs = s_row + (batch * 32)[:, None]
    x_ptrs = x_rows[None, None, :] + (batch * 64)[:, None, None] + byte[None, :, None]
    acc = tl.full((SB, BN, BT), 0.0, tl.float32)
    IN: tl.constexpr = 0 if WIDE or not ASM else SHIFT
    OUT: tl.constexpr = 126 - SHIFT if ASM and not WIDE else 0
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
                if UNROLL == 1:
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
            acc = _add_step(acc, lo, hi, pair, x_ptrs, x_mask, IN, WIDE, ASM)
            onward = tl.where(step == STEPS - 1, 1 - STEPS, 1)
            step += onward
            w_offs += onward * (SB * 1024)
            s_offs += onward * (SB * 32)
            x_ptrs += onward * (SB * 64)
    if K % 64 != 0:
        acc = _last_block(acc, w_ptr, s_ptr, x_rows, row, valid, N, K, SB, IN, WIDE, ASM)
    total = tl.sum(acc, 0)
    return total * 2.0**OUT
