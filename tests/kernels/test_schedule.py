"""What every plan must hold, over token counts, published shapes, GPUs and modes."""

from __future__ import annotations

import collections
import dataclasses
import itertools

import pytest
import torch

from scripts.machine_code.compiled_tile import SHAPES
from sglang_sm120.kernels.sm120.fp4_moe import MXFP4, NVFP4
from sglang_sm120.kernels.sm120.fp4_moe.host import schedule

ODD = (
    *((64, 32, 1, 1), (96, 32, 5, 3), (64, 32, 2, 32), (256, 128, 3, 32)),
    *((192, 128, 2, 2), (128, 96, 2, 2), (5120, 2304 // 8, 384, 6)),  # half a tile of rows; half a superblock
)
TOKENS = (*range(1, 40), *range(40, 700, 23), *range(700, 8193, 331), 8192)
MODES = tuple(itertools.product((False, True), repeat=4))  # mxfp8, invariant, wide range, NVFP4


def plans(shape, fp8=False):
    hidden, inter, experts, top_k = shape
    for tokens, (mxfp8, invariant, wide, nv) in itertools.product(TOKENS, MODES):
        if nv and (mxfp8 or wide):
            continue
        work = schedule.Work(
            tokens, top_k, experts, hidden, inter, mxfp8=mxfp8, fp8=fp8 and mxfp8, invariant=invariant, wide_range=wide,
            format=NVFP4 if nv else MXFP4,
        )  # fmt: skip
        for sms, sm90 in ((24, False), (70, False), (188, False), (132, True)):
            yield work, schedule.plan(work, sms, sm90)


@pytest.mark.parametrize("shape", [*SHAPES, *ODD])
@pytest.mark.parametrize("fp8", [False, True])
def test_there_are_programs_for_every_group(shape, fp8):
    """The worst routing: a route for each expert, then whole groups that each begin with the last one's overflow."""
    for work, plan in plans(shape, fp8):
        width = plan.gate_up.tokens
        assert plan.down.tokens == width
        begun = min(work.routes, work.experts)
        assert plan.groups >= begun + (work.routes - begun) // width
        if plan.many:
            assert not any((work.wide_range, work.fp8))
            assert work.hidden % (64 * plan.gate_up.superblocks) == 0
            if work.invariant:  # wgmma throughout: a row's order of additions is the same in every tile
                assert work.inter % (64 * plan.down.superblocks) == 2 * work.inter % plan.gate_up.rows == 0
            assert work.inter >= 64 * plan.down.superblocks
            assert work.hidden % plan.down.rows == 0  # the second product's stores have no mask for rows
        if work.mxfp8 and not fp8:
            assert plan.gate_up.rows % 64 == 0  # a block of 32 channels lies in one tile
        assert schedule.may_unroll(plan.gate_up, 2 * work.inter, work.hidden)
        assert schedule.may_unroll(plan.down, work.hidden, work.inter)


@pytest.mark.parametrize(("tokens", "two_warps"), [(1, True), (4, True), (6, False), (64, False)])
def test_two_warps_on_sm120_while_all_programs_fit(tokens, two_warps):
    """V4-Flash at TP4: 192 programs of 32 rows a token on 188 SMs of 5."""
    tile = schedule.plan(schedule.Work(tokens, 6, 256, 4096, 512), 188, False).gate_up
    assert (tile.warps, tile.unroll) == ((2, 2) if two_warps else (1, 1))
    odd = schedule.plan(schedule.Work(tokens, 6, 256, 4096 + 128, 512), 188, False).gate_up
    assert (odd.warps, odd.unroll) == (1, 1)


@pytest.mark.parametrize("sm90", [False, True])
@pytest.mark.parametrize("inter", [2304 // 4, 2304 // 8, 3072 // 16])
def test_many_tokens_take_wide_tiles_whatever_is_left_of_a_step(inter, sm90):
    """V4.1-Flash at TP4 and TP8, V4-Pro at TP16: 9, 4.5 and 3 superblocks."""
    assert schedule.plan(schedule.Work(4096, 6, 384, 5120, inter), 132 if sm90 else 188, sm90).many


@pytest.mark.parametrize("shape", [*SHAPES, *ODD])
def test_offsets_of_a_chunk_fit_32_bits(shape):
    hidden, inter, _, top_k = shape
    assert schedule.chunk_tokens(top_k, hidden, inter) * top_k * max(hidden, 2 * inter) < 2**31


@pytest.mark.parametrize("shape", [*SHAPES, *ODD])
@pytest.mark.parametrize("fp8", [False, True])
def test_batch_invariant_plans_add_in_one_order(shape, fp8):
    """All tiles of one family, which on a GPU and for a layer is the same for any number of tokens; nothing is rounded.

    In wgmma's family the steps may differ in size (tests/kernels/test_invariance.py), in the others not.
    """
    orders = collections.defaultdict(set)
    for work, plan in plans(shape, fp8):
        if work.invariant and work.mxfp8 >= fp8:
            assert plan.partial == torch.float32
            steps = () if plan.many else (plan.gate_up.superblocks, plan.down.superblocks)
            orders[work.wide_range, work.format.name, work.mxfp8].add((plan.many, *steps))
    sm90 = {order for found in orders.values() for order in found if order[0]}
    assert sm90 <= {(True,)}
    assert all(len(found - sm90) == 1 for found in orders.values())


@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_only_sm90_multiplies_with_wgmma_throughout(tokens):
    """V4-Flash at TP1, and a layer that wgmma's tiles do not fit."""
    work = schedule.Work(tokens, 6, 256, 4096, 2048, invariant=True)
    assert [schedule.plan(work, 132, sm90).many for sm90 in (False, True)] == [False, True]
    assert not schedule.plan(dataclasses.replace(work, inter=288), 132, True).many
