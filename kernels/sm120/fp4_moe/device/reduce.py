"""The last step: y[t] = factor * sum over slots of weight * (the slot's row), in float32, always in slot order."""

from __future__ import annotations

import triton.language as tl

from ..runtime import kernel
from .decode import round_to_mxfp8, to_bf16, to_fp8_bytes
from .product_wgmma import in_wgmma_order


@kernel
def combine(
    o_ptr, ids_ptr, weights_ptr, y_ptr, factor, num_experts, y_stride, TOP_K: tl.constexpr, HIDDEN: tl.constexpr,
    BH: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program per token and BH columns. Rows of ids outside 0 .. E-1 are neither read nor weighted."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BH + tl.arange(0, BH)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    acc = tl.full((BH,), 0.0, tl.float32)
    for slot in tl.static_range(TOP_K):
        route = token * TOP_K + slot
        expert = tl.load(ids_ptr + route)
        here = (expert >= 0) & (expert < num_experts)
        weight = tl.load(weights_ptr + route, mask=here, other=0.0)
        row = tl.load(o_ptr + route * HIDDEN + column, mask=here & (column < HIDDEN), other=0.0)
        acc += weight * row.to(tl.float32)
    tl.store(y_ptr + token * y_stride + column, to_bf16(acc * factor, ASM), mask=column < HIDDEN)


@kernel
def round_rows_to_mxfp8(
    x_ptr, q_ptr, x_stride, K: tl.constexpr, BLOCKS: tl.constexpr, WGMMA: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """q = x [rows, K] rounded to MXFP8 and back, bf16 (exact: e4m3 has fewer bits). A program per row and block run.

    WGMMA: in `layout.WGMMA_ORDER`.
    """
    from_row = tl.program_id(0).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    x = tl.load(x_ptr + from_row * x_stride + column, mask=column < K, other=0.0).to(tl.float32)
    q = to_bf16(round_to_mxfp8(x, 1), ASM)
    if WGMMA:
        q = tl.reshape(in_wgmma_order(tl.reshape(q, (BLOCKS * 32, 1)), BLOCKS, 1), (BLOCKS, 32))
    tl.store(q_ptr + from_row * K + column, q, mask=column < K)


@kernel
def reorder_rows(x_ptr, q_ptr, x_stride, K: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr):
    """q = x [rows, K] in `layout.WGMMA_ORDER`. K is a multiple of 32. A program per row and block run."""
    from_row = tl.program_id(0).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    column = tl.program_id(1) * (BLOCKS * 32) + tl.arange(0, BLOCKS * 32)[:, None]
    x = tl.load(x_ptr + from_row * x_stride + column, mask=column < K, other=0.0)
    tl.store(q_ptr + from_row * K + column, in_wgmma_order(x, BLOCKS, 1), mask=column < K)


@kernel
def quantize_rows(x_ptr, q_ptr, qs_ptr, x_stride, K: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr):
    """x [rows, K] as e4m3 [rows, K] and scale pairs [rows, 2 * ceil(K / 64)], in the order that `product_fp8` reads."""
    from_row = tl.program_id(0).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    inner = tl.arange(0, 32)
    column = block[:, None] * 32 + inner[None, :]
    x = tl.load(x_ptr + from_row * x_stride + column, mask=column < K, other=0.0).to(tl.float32)
    codes, scale = to_fp8_bytes(x, 1)
    place = inner // 4 * 4 + inner % 2 * 2 + inner // 2 % 2  # layout.FP8_ORDER
    tl.store(q_ptr + from_row * K + block[:, None] * 32 + place[None, :], codes, mask=column < K)
    offs = from_row * ((K + 63) // 64 * 2) + block
    scale = tl.reshape(scale, (BLOCKS,))
    tl.store(qs_ptr + offs, scale, mask=block * 32 < K)
    if K % 64 != 0:  # the last block's scale stands for both halves of its superblock
        tl.store(qs_ptr + offs + 1, scale, mask=block == K // 32 - 1)
