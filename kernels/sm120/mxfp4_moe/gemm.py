"""The two grouped matrix products of the layer, W4A16: weights on the M side of the MMA, tokens on the N side.

A program owns BN weight rows of one expert and one group of up to BT routes. Its warps divide K among themselves: the
product is a batched one over SB neighbouring superblocks of 64 columns, one (or more) per warp, so each weight and each
activation is read from shared memory by exactly one warp, and the partial sums meet once, after the loop. Tensor cores see
the codes as bf16 without their scales; one multiply-add per accumulator and block of 32 applies the scale in float32.

Range. A decoded code is its value times 2**-126. To keep products away from the bottom of the float32 range activations
are multiplied by 2**SHIFT on the way in and sums by 2**(126 - SHIFT) on the way out, all exact, for activations below
2**(127 - SHIFT) in magnitude (larger ones become infinite): SHIFT is 56 for x, and 100 for the intermediate, which a
clamp bounds. WIDE lifts that limit and is exact for every scale byte; it costs one more multiplication per two weights.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .decode import load_bf16_codes, prefetch_to_l2, round_to_mxfp8, scale_to_float32, times_power_of_two, times_scale, to_bf16
from .routing import own_group_by_scan, own_group_by_table
from .runtime import kernel

X_SHIFT = tl.constexpr(56)
H_SHIFT = tl.constexpr(100)
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
    SCALED: tl.constexpr, WIDE: tl.constexpr, ASM: tl.constexpr,
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
    if SCALED:
        acc = tl.dot(times_scale(lo, scale, ASM), x_lo, acc)
        acc = tl.dot(times_scale(hi, scale, ASM), x_hi, acc)
    else:
        factor = tl.where(first, scale_to_float32(scale, WIDE)[:, :, None], 0.0)
        acc += tl.dot(hi, x_hi, tl.dot(lo, x_lo)) * factor
    return acc


@triton.jit
def accumulate(
    w_ptr, s_ptr, x_rows, valid, tile, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    SB: tl.constexpr, STAGES: tl.constexpr, SHIFT: tl.constexpr, SCALED: tl.constexpr, WIDE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """float32 [BN, BT]: rows tile * BN ... of one expert's matrix [N, K] times the activations at x_rows [BT]."""
    row = tile * BN + tl.arange(0, BN)
    batch, byte = tl.arange(0, SB), tl.arange(0, 32)
    w_offs = ((row // 32) * (16 * K) + (row % 32) * 32)[None, :, None] + (batch * 1024)[:, None, None]
    w_offs += byte[None, None, :]
    s_offs = ((row // 32) * (K // 2) + row % 32)[None, :] + (batch * 32)[:, None]
    x_ptrs = x_rows[None, None, :] + (batch * 64)[:, None, None] + byte[None, :, None]
    acc = tl.full((SB, BN, BT), 0.0, tl.float32)
    IN: tl.constexpr = 0 if SCALED or WIDE or not ASM else SHIFT
    OUT: tl.constexpr = (64 if SCALED else 126 - (WIDE_SHIFT if WIDE else SHIFT)) if ASM else 0
    SUPERBLOCKS: tl.constexpr = K // 64
    MASKED: tl.constexpr = SUPERBLOCKS % SB != 0 or N % BN != 0
    for step in tl.range(0, (SUPERBLOCKS + SB - 1) // SB, num_stages=STAGES):
        if MASKED:
            inside = step * SB + batch < SUPERBLOCKS
            w_mask = inside[:, None] & (row < N)[None, :]
            x_mask = inside[:, None, None] & valid[None, None, :]
            lo, hi = _codes(w_ptr, w_offs, byte[None, None, :], w_mask[:, :, None], True, WIDE, ASM)
            pair = tl.load(s_ptr + s_offs, mask=w_mask, other=0).to(tl.int32)
        else:
            x_mask = valid[None, None, :]
            lo, hi = _codes(w_ptr, w_offs, byte[None, None, :], None, False, WIDE, ASM)
            pair = tl.load(s_ptr + s_offs).to(tl.int32)
        x_lo = _activations(x_ptrs, x_mask, IN, ASM)
        x_hi = _activations(x_ptrs + 32, x_mask, IN, ASM)
        if SCALED:
            acc = tl.dot(times_scale(lo, pair & 255, ASM), x_lo, acc)
            acc = tl.dot(times_scale(hi, (pair >> 8) & 255, ASM), x_hi, acc)
        else:
            acc += tl.dot(lo, x_lo) * scale_to_float32(pair & 255, WIDE)[:, :, None]
            acc += tl.dot(hi, x_hi) * scale_to_float32((pair >> 8) & 255, WIDE)[:, :, None]
        w_offs += SB * 1024
        s_offs += SB * 32
        x_ptrs += SB * 64
    if K % 64 != 0:
        acc = _last_block(acc, w_ptr, s_ptr, x_rows, row, valid, N, K, SB, IN, SCALED, WIDE, ASM)
    total = tl.sum(acc, 0)
    return total * 2.0**OUT


@triton.jit
def clamped_swiglu(gate, up, limit):
    """silu(min(gate, limit)) * clip(up, -limit, limit); comparisons are written so that NaN stays NaN."""
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, up)
    up = tl.where(up < -limit, -limit, up)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _own_group(
    group, ids_ptr, counts_ptr, num_routes, num_experts, RP: tl.constexpr, EP: tl.constexpr, BT: tl.constexpr,
    SCAN: tl.constexpr,
):  # fmt: skip
    if SCAN:
        expert, routes, count = own_group_by_scan(ids_ptr, group, num_routes, num_experts, RP, BT)
    else:
        expert, routes, count = own_group_by_table(ids_ptr, counts_ptr, group, num_experts, EP, BT)
    return expert, routes, count


@kernel
def gate_up(
    x_ptr, w_ptr, s_ptr, h_ptr, ids_ptr, counts_ptr, x_stride, limit, num_routes, num_experts, TOP_K: tl.constexpr,
    HIDDEN: tl.constexpr, INTER: tl.constexpr, RP: tl.constexpr, EP: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    SB: tl.constexpr, STAGES: tl.constexpr, SCAN: tl.constexpr, QUANT: tl.constexpr, SCALED: tl.constexpr, WIDE: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr, PREFETCH: tl.constexpr,
):  # fmt: skip
    """h [route, I] = SwiGLU of the first product, bf16. ids: the router's (SCAN) or `sort_routes`' sorted routes."""
    TILES: tl.constexpr = (2 * INTER + BN - 1) // BN
    pid = tl.program_id(0)
    tile = pid % TILES
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if PREFETCH and SCAN:
        expert = tl.load(ids_ptr + pid // TILES).to(tl.int32)
        if (expert >= 0) & (expert < num_experts):
            line = tl.arange(0, 2 * BN)  # the first 8 KiB of each 32 rows
            offs = (tile * BN + line // 64 * 32) // 32 * (16 * HIDDEN) + line % 64 * 128
            prefetch_to_l2(w_ptr + expert.to(tl.int64) * (INTER * HIDDEN) + tl.minimum(offs, INTER * HIDDEN - 1))
    expert, routes, count = _own_group(pid // TILES, ids_ptr, counts_ptr, num_routes, num_experts, RP, EP, BT, SCAN)
    if count == 0:
        return
    valid = tl.arange(0, BT) < count
    x_rows = x_ptr + (routes // TOP_K).to(tl.int64) * x_stride
    w_ptr += expert.to(tl.int64) * (INTER * HIDDEN)
    s_ptr += expert.to(tl.int64) * (INTER * HIDDEN // 32)
    acc = accumulate(w_ptr, s_ptr, x_rows, valid, tile, 2 * INTER, HIDDEN, BN, BT, SB, STAGES, X_SHIFT, SCALED, WIDE, ASM)
    halves = tl.permute(tl.reshape(acc, (BN // 16, 2, 8, BT)), (0, 2, 3, 1))
    gate, up = tl.split(halves)
    hidden = tl.reshape(clamped_swiglu(gate, up, limit), (BN // 2, BT))
    if QUANT:
        hidden = tl.reshape(round_to_mxfp8(tl.reshape(hidden, (BN // 64, 32, BT)), 1), (BN // 2, BT))
    channel = tile * (BN // 2) + tl.arange(0, BN // 2)
    offs = routes.to(tl.int64)[None, :] * INTER + channel[:, None]
    tl.store(h_ptr + offs, to_bf16(hidden, ASM), mask=valid[None, :] & (channel < INTER)[:, None])


@kernel
def down(
    h_ptr, w_ptr, s_ptr, o_ptr, ids_ptr, counts_ptr, num_routes, num_experts, prefetching_programs,
    HIDDEN: tl.constexpr, INTER: tl.constexpr, RP: tl.constexpr, EP: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    SB: tl.constexpr, STAGES: tl.constexpr, SCAN: tl.constexpr, SCALED: tl.constexpr, WIDE: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr, PREFETCH: tl.constexpr,
):  # fmt: skip
    """o [route, H] = second product, one row per route, in o's type."""
    TILES: tl.constexpr = (HIDDEN + BN - 1) // BN
    pid = tl.program_id(0)
    tile = pid % TILES
    # Neither the routing nor the weights depend on the first product: with dependent launch they are fetched during its
    # tail, by the programs that find room beside it.
    expert, routes, count = _own_group(pid // TILES, ids_ptr, counts_ptr, num_routes, num_experts, RP, EP, BT, SCAN)
    if count == 0:
        return
    valid = tl.arange(0, BT) < count
    h_rows = h_ptr + routes.to(tl.int64) * INTER
    w_ptr += expert.to(tl.int64) * (INTER * HIDDEN // 2)
    s_ptr += expert.to(tl.int64) * (INTER * HIDDEN // 64)
    if PDL:
        if PREFETCH and pid < prefetching_programs:
            LINES: tl.constexpr = (BN * INTER // 2 + 127) // 128
            line = tl.minimum(tl.arange(0, triton.next_power_of_2(LINES)), LINES - 1)
            prefetch_to_l2(w_ptr + tl.minimum((tile * LINES + line) * 128, INTER * HIDDEN // 2 - 1))
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    acc = accumulate(w_ptr, s_ptr, h_rows, valid, tile, HIDDEN, INTER, BN, BT, SB, STAGES, H_SHIFT, SCALED, WIDE, ASM)
    row = tile * BN + tl.arange(0, BN)
    offs = routes.to(tl.int64)[None, :] * HIDDEN + row[:, None]
    mask = valid[None, :] & (row < HIDDEN)[:, None]
    if o_ptr.dtype.element_ty == tl.float32:
        tl.store(o_ptr + offs, acc, mask=mask)
    else:
        tl.store(o_ptr + offs, to_bf16(acc, ASM), mask=mask)
