"""Device functions that tell a program which expert and which routes are its own.

A route is one (token, slot) pair, numbered token * top_k + slot. A group is up to BT routes of one expert; each group
reads the expert's weights once. Ids outside 0 .. E-1 belong to no group.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..runtime import kernel


@triton.jit
def _bits_set(word, ASM: tl.constexpr):
    """Population count of an int32's bits."""
    if ASM:
        n = tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1)
    else:
        w = word.to(tl.uint32, bitcast=True)
        w = w - ((w >> 1) & 0x55555555)
        w = (w & 0x33333333) + ((w >> 2) & 0x33333333)
        w = (w + (w >> 4)) & 0x0F0F0F0F
        w += w >> 8
        w += w >> 16
        n = (w & 63).to(tl.int32)
    return n


@triton.jit
def _equal_ids(ids, bit, ASM: tl.constexpr):
    """int32 [32] of ids [32]: bit j of element i says whether ids[i] == ids[j]. bit [32]: 1 << i.

    `match.any` compares the lanes of a warp, so lane i must hold element i. Triton gives a range of 32 that layout and
    keeps it for assembly that it must assume impure; tests/kernels/test_report.py reads it in the compiled form.
    """
    if ASM:
        same = tl.inline_asm_elementwise(
            "match.any.sync.b32 $0, $1, 0xffffffff;", "=r,r", [ids], dtype=tl.int32, is_pure=False, pack=1
        )
    else:
        same = tl.sum(tl.where(ids[:, None] == ids[None, :], bit[None, :], 0), 1)
    return same


@triton.jit
def own_group_by_scan(ids_ptr, group, num_routes, num_experts, BT: tl.constexpr, ASM: tl.constexpr):
    """(expert, routes [BT], count): group number `group` in the order of their first routes, or count 0.

    Compares all ids with each other (at most 32), so it needs no sort and no earlier launch. Programs without a group
    come last in the grid: scattered among the others, as they are when each route has a program, they leave some SMs
    with more work than others (benchmarks/NOTES.md).
    """
    offs = tl.arange(0, 32)
    ids = tl.load(ids_ptr + offs, mask=offs < num_routes, other=-1)
    valid = (ids >= 0) & (ids < num_experts) & (offs < num_routes)
    ids = tl.where(valid, ids, -1).to(tl.int32)  # not before the comparison: 2**32 would become expert 0
    bit = tl.full((32,), 1, tl.int32) << offs
    same = _equal_ids(ids, bit, ASM)
    begins = valid & (_bits_set(same & (bit - 1), ASM) % BT == 0)
    all_begins = tl.sum(tl.where(begins, bit, 0), 0)
    mine = begins & (_bits_set(all_begins & (bit - 1), ASM) == group)
    expert = tl.sum(tl.where(mine, ids, 0), 0)
    left = tl.sum(tl.where(mine, same & -bit, 0), 0)  # this group's routes and the expert's later ones, a bit each
    count = tl.minimum(_bits_set(left, ASM), BT)
    slot = tl.arange(0, BT)
    rest = left + slot * 0
    for i in tl.static_range(BT - 1):
        rest = tl.where(slot > i, rest & (rest - 1), rest)
    routes = _bits_set((rest & -rest) - 1, ASM)
    return expert, tl.where(slot < count, routes, 0), count


@triton.jit
def own_group_by_table(sorted_ptr, table_ptr, group, BT: tl.constexpr):
    """(expert, routes [BT], count): group number `group` in expert order, from what `sort_routes` wrote."""
    groups = tl.load(table_ptr)
    entry = table_ptr + 4 + group * 4  # beyond the last group nobody has written, but the memory is there
    expert, start, count = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    count = tl.where(group < groups, count, 0)
    slot = tl.arange(0, BT)
    routes = tl.load(sorted_ptr + start + slot, mask=slot < count, other=0)
    return expert, routes, count


@kernel
def sort_routes(
    ids_ptr, sorted_ptr, table_ptr, num_routes, num_experts, CHUNK: tl.constexpr, EP: tl.constexpr, BT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program per expert: its routes in ascending order and its groups. No atomics, so always the same.

    sorted int32 [num_routes]. table int32: the number of groups, three unused, then per group (expert, where its routes
    start in sorted, how many there are, unused). EP > num_experts, a power of two.
    """
    expert = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    offs, each = tl.arange(0, CHUNK), tl.arange(0, EP)
    counts = tl.zeros((EP,), tl.int32)
    for first in range(0, num_routes, CHUNK):
        ids = tl.load(ids_ptr + first + offs, mask=first + offs < num_routes, other=-1)
        counts += tl.histogram(tl.where((ids >= 0) & (ids < num_experts), ids, EP - 1).to(tl.int32), EP)
    counts = tl.where(each < num_experts, counts, 0)
    groups = (counts + BT - 1) // BT
    count = tl.sum(tl.where(each == expert, counts, 0), 0)
    start = tl.sum(tl.where(each < expert, counts, 0), 0)
    group = tl.sum(tl.where(each < expert, groups, 0), 0)
    if expert == 0:
        tl.store(table_ptr, tl.sum(groups, 0))
    for done in range(0, count, BT):
        entry = table_ptr + 4 + (group + done // BT) * 4
        tl.store(entry, expert)
        tl.store(entry + 1, start + done)
        tl.store(entry + 2, tl.minimum(count - done, BT))
    for first in range(0, num_routes, CHUNK):
        ids = tl.load(ids_ptr + first + offs, mask=first + offs < num_routes, other=-1)
        same = (ids == expert).to(tl.int32)
        rank = tl.cumsum(same, 0) - 1
        tl.store(sorted_ptr + start + rank, first + offs, mask=same != 0)
        start += tl.sum(same, 0)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
