"""The two grouped matrix products of the layer as kernels: routing, product, epilogue.

A program owns BN weight rows of one expert and one group of up to BT routes of that expert. Programs of one group are
neighbours in launch order, so groups of the same expert find its weights in L2.

With dependent launch the first product lets the second begin only when its own sums are done: programs that are placed
while the SMs are unevenly filled crowd onto a few of them, and a layer with few groups then took up to 1.7 times as
long (benchmarks/NOTES.md). The sort does the same.

Scale pointers have the format's type (`formats.Format.scales`): with that, their offsets are the same for both formats.
Offsets into the weights, x and h are 64-bit per expert and row; those into a tile of h or o are 32-bit, because the
workspace of a chunk keeps routes * H below 2**31 (`schedule.chunk_tokens`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..runtime import kernel
from .decode import NV_SUMS, round_to_mxfp8, to_bf16, to_fp8_bytes
from .groups import own_group_by_scan, own_group_by_table
from .product_bf16 import accumulate
from .product_fp8 import accumulate_fp8
from .product_wgmma import accumulate_wgmma, in_wgmma_order
from .product_wide import accumulate_wide, first_of

X_SHIFT = tl.constexpr(56)
H_SHIFT = tl.constexpr(100)


@triton.jit
def clamped_swiglu(gate, up, limit):
    """silu(min(gate, limit)) * clip(up, -limit, limit); comparisons are written so that NaN stays NaN."""
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, up)
    up = tl.where(up < -limit, -limit, up)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _store_fp8(
    h_ptr, hs_ptr, hidden, routes, valid, tile, INTER: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr
):  # fmt: skip
    """hidden float32 [BN / 2, BT] as e4m3 and scale pairs, in the order that `product_fp8` reads."""
    BLOCKS: tl.constexpr = BN // 64
    codes, scale = to_fp8_bytes(tl.reshape(hidden, (BLOCKS, 32, BT)), 1)
    channel = tile * (BN // 2) + tl.arange(0, BN // 2)
    place = channel // 4 * 4 + channel % 2 * 2 + channel // 2 % 2  # layout.FP8_ORDER
    offs = routes[None, :] * INTER + place[:, None]
    inside = valid[None, :] & (channel < INTER)[:, None]
    tl.store(h_ptr + offs, tl.reshape(codes, (BN // 2, BT)), mask=inside)
    block = tile * BLOCKS + tl.arange(0, BLOCKS)
    scale = tl.reshape(scale, (BLOCKS, BT))
    offs = routes[None, :] * ((INTER + 63) // 64 * 2) + block[:, None]
    inside = valid[None, :] & (block * 32 < INTER)[:, None]
    tl.store(hs_ptr + offs, scale, mask=inside)
    if INTER % 64 != 0:  # the last block's scale stands for both halves of its superblock
        tl.store(hs_ptr + offs + 1, scale, mask=inside & (block == INTER // 32 - 1)[:, None])


@triton.jit
def _own_group(
    group, ids_ptr, table_ptr, num_routes, num_experts, SCAN: tl.constexpr, BT: tl.constexpr, ASM: tl.constexpr
):  # fmt: skip
    if SCAN:
        expert, routes, count = own_group_by_scan(ids_ptr, group, num_routes, num_experts, BT, ASM)
    else:
        expert, routes, count = own_group_by_table(ids_ptr, table_ptr, group, BT)
    return expert, routes, count


@triton.jit
def _nv_global(g_ptr, place, ASM: tl.constexpr):
    """What sums of an NVFP4 product are multiplied by, for the multiplier at this place."""
    factor = tl.load(g_ptr + place)
    if ASM:
        factor *= NV_SUMS
    return factor


@kernel
def gate_up(
    x_ptr, xs_ptr, w_ptr, s_ptr, h_ptr, hs_ptr, ids_ptr, table_ptr, g_ptr, x_stride, limit, num_routes, num_experts,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, INTER: tl.constexpr,
    BN: tl.constexpr, BT: tl.constexpr, SB: tl.constexpr, UNROLL: tl.constexpr, STAGES: tl.constexpr,
    SCAN: tl.constexpr, QUANT: tl.constexpr, MANY: tl.constexpr, WGMMA: tl.constexpr, TURN: tl.constexpr,
    WIDE: tl.constexpr, NV: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """h [route, I] = SwiGLU of the first product, bf16. ids: the router's (SCAN) or `sort_routes`' sorted routes.

    NV: weights in NVFP4, with multipliers at g_ptr, float32 [E, 2] (gate, up); else g_ptr is None.
    """
    TILES: tl.constexpr = (2 * INTER + BN - 1) // BN
    pid = tl.program_id(0)
    tile = pid % TILES
    if PDL:
        tl.extra.cuda.gdc_wait()
    expert, routes, count = _own_group(pid // TILES, ids_ptr, table_ptr, num_routes, num_experts, SCAN, BT, ASM)
    if count == 0:
        return
    valid = tl.arange(0, BT) < count
    x_rows = x_ptr + (routes // TOP_K).to(tl.int64) * x_stride
    w_ptr += expert.to(tl.int64) * (INTER * HIDDEN)
    s_ptr += expert.to(tl.int64) * (INTER * HIDDEN // 32)
    if NV:
        gate_global, up_global = _nv_global(g_ptr, 2 * expert, ASM), _nv_global(g_ptr, 2 * expert + 1, ASM)
    if FP8:
        xs_rows = xs_ptr + routes // TOP_K * ((HIDDEN + 63) // 64)
        acc = accumulate_fp8(w_ptr, s_ptr, x_rows, xs_rows, valid, tile, 2 * INTER, HIDDEN, BN, BT, SB, STAGES)
    elif WGMMA:
        acc = accumulate_wgmma(w_ptr, s_ptr, x_rows, valid, tile, 2 * INTER, HIDDEN, BN, BT, SB, STAGES, TURN, NV, ASM)
    elif MANY:
        acc = accumulate_wide(w_ptr, s_ptr, x_rows, valid, tile, 2 * INTER, HIDDEN, BN, BT, SB, STAGES, NV, ASM)
    else:
        acc = accumulate(
            w_ptr, s_ptr, x_rows, valid, tile, 2 * INTER, HIDDEN, BN, BT, SB, UNROLL, STAGES, X_SHIFT, WIDE, NV, ASM
        )
    if PDL:  # not earlier: see the module's text
        tl.extra.cuda.gdc_launch_dependents()
    halves = tl.permute(tl.reshape(acc, (BN // 16, 2, 8, BT)), (0, 2, 3, 1))
    gate, up = tl.split(halves)
    if NV:
        gate, up = gate * gate_global, up * up_global
    hidden = tl.reshape(clamped_swiglu(gate, up, limit), (BN // 2, BT))
    if FP8:
        _store_fp8(h_ptr, hs_ptr, hidden, routes, valid, tile, INTER, BN, BT)
    else:
        if QUANT:
            hidden = tl.reshape(round_to_mxfp8(tl.reshape(hidden, (BN // 64, 32, BT)), 1), (BN // 2, BT))
        if WGMMA:
            hidden = in_wgmma_order(hidden, BN // 64, BT)
        channel = tile * (BN // 2) + tl.arange(0, BN // 2)
        own = channel < INTER
        if MANY and 2 * INTER % BN != 0:  # the last tile ends with the matrix, and begins in the one before
            channel = first_of(tile, 2 * INTER, BN, 2) + tl.arange(0, BN // 2)
            own = channel >= tile * (BN // 2)
        offs = routes[None, :] * INTER + channel[:, None]
        tl.store(h_ptr + offs, to_bf16(hidden, ASM), mask=valid[None, :] & own[:, None])


@kernel
def down(
    h_ptr, hs_ptr, w_ptr, s_ptr, o_ptr, ids_ptr, table_ptr, g_ptr, num_routes, num_experts,
    HIDDEN: tl.constexpr, INTER: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    SB: tl.constexpr, UNROLL: tl.constexpr, STAGES: tl.constexpr, SCAN: tl.constexpr, MANY: tl.constexpr,
    WGMMA: tl.constexpr, TURN: tl.constexpr, WIDE: tl.constexpr, NV: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """o [route, H] = second product, one row per route, in o's type. NV: with multipliers at g_ptr, float32 [E]."""
    TILES: tl.constexpr = (HIDDEN + BN - 1) // BN
    pid = tl.program_id(0)
    tile = pid % TILES
    # The routing does not depend on the first product: with dependent launch it is read during that product's tail.
    expert, routes, count = _own_group(pid // TILES, ids_ptr, table_ptr, num_routes, num_experts, SCAN, BT, ASM)
    if count == 0:
        return
    valid = tl.arange(0, BT) < count
    h_rows = h_ptr + routes.to(tl.int64) * INTER
    w_ptr += expert.to(tl.int64) * (INTER * HIDDEN // 2)
    s_ptr += expert.to(tl.int64) * (INTER * HIDDEN // 64)
    if NV:
        factor = _nv_global(g_ptr, expert, ASM)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if FP8:
        hs_rows = hs_ptr + routes.to(tl.int64) * ((INTER + 63) // 64)
        acc = accumulate_fp8(w_ptr, s_ptr, h_rows, hs_rows, valid, tile, HIDDEN, INTER, BN, BT, SB, STAGES)
    elif WGMMA:
        acc = accumulate_wgmma(w_ptr, s_ptr, h_rows, valid, tile, HIDDEN, INTER, BN, BT, SB, STAGES, TURN, NV, ASM)
    elif MANY:
        acc = accumulate_wide(w_ptr, s_ptr, h_rows, valid, tile, HIDDEN, INTER, BN, BT, SB, STAGES, NV, ASM)
    else:
        acc = accumulate(
            w_ptr, s_ptr, h_rows, valid, tile, HIDDEN, INTER, BN, BT, SB, UNROLL, STAGES, H_SHIFT, WIDE, NV, ASM
        )
    if NV:
        acc *= factor
    row = tile * BN + tl.arange(0, BN)
    offs = routes[None, :] * HIDDEN + row[:, None]
    mask = valid[None, :] & (row < HIDDEN)[:, None] if HIDDEN % BN != 0 else valid[None, :]
    if o_ptr.dtype.element_ty == tl.float32:
        tl.store(o_ptr + offs, acc, mask=mask)
    else:
        tl.store(o_ptr + offs, to_bf16(acc, ASM), mask=mask)
