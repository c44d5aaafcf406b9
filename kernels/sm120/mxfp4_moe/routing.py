"""Device functions that tell a program which expert and which routes are its own.

A route is one (token, slot) pair, numbered token * top_k + slot. A group is up to BT routes of one expert; each group
reads the expert's weights once. Ids outside 0 .. E-1 belong to no group.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .runtime import kernel


@triton.jit
def _bits_set(word):
    """Population count of an int64, by the usual sums of neighbouring fields (bit 63 must be clear)."""
    word = word - ((word >> 1) & 0x5555555555555555)
    word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0F
    word += word >> 8
    word += word >> 16
    word += word >> 32
    return (word & 127).to(tl.int32)


@triton.jit
def own_group_by_scan(ids_ptr, route, num_routes, num_experts, RP: tl.constexpr, BT: tl.constexpr):
    """(expert, routes [BT], count): the group that begins with `route`, or count 0 if an earlier route begins it.

    Scans all ids (RP > num_routes, a power of two up to 64), so it needs no sort and no earlier launch. The expert's
    routes become the bits of one number; the rest is arithmetic without exchange.
    """
    offs = tl.arange(0, RP)
    ids = tl.load(ids_ptr + offs, mask=offs < num_routes, other=-1)
    own = tl.load(ids_ptr + route)
    in_range = (own >= 0) & (own < num_experts)
    same = (ids == own) & (offs < num_routes)
    bit = tl.full((), 1, tl.int64)
    routes_set = tl.sum(tl.where(same, bit << offs.to(tl.int64), 0), 0)
    before = _bits_set(routes_set & ((bit << route.to(tl.int64)) - 1))
    left = routes_set & -(bit << route.to(tl.int64))
    count = tl.where((before % BT == 0) & in_range, tl.minimum(_bits_set(left), BT), 0)
    slot = tl.arange(0, BT)
    rest = left + tl.full((BT,), 0, tl.int64)
    for i in tl.static_range(BT - 1):
        rest = tl.where(slot > i, rest & (rest - 1), rest)
    routes = _bits_set((rest & -rest) - 1)
    return own.to(tl.int32), tl.where(slot < count, routes, 0), count


@triton.jit
def own_group_by_table(sorted_ptr, counts_ptr, group, num_experts, EP: tl.constexpr, BT: tl.constexpr):
    """(expert, routes [BT], count): group number `group` in expert order, from what `sort_routes` wrote.

    counts holds, per expert, its number of routes and where they start in `sorted`. EP >= num_experts, a power of two.
    """
    expert = tl.arange(0, EP)
    counts = tl.load(counts_ptr + expert, mask=expert < num_experts, other=0)
    groups = (counts + BT - 1) // BT
    ends = tl.cumsum(groups, 0)
    own = tl.sum((ends <= group).to(tl.int32), 0)
    here = expert == own
    position = group - tl.sum(tl.where(here, ends - groups, 0), 0)
    count = tl.minimum(tl.sum(tl.where(here, counts, 0), 0) - position * BT, BT)
    count = tl.where(own < num_experts, count, 0)
    start = tl.load(counts_ptr + num_experts + own, mask=own < num_experts, other=0)
    slot = tl.arange(0, BT)
    routes = tl.load(sorted_ptr + start + position * BT + slot, mask=slot < count, other=0)
    return own, routes, count


@kernel
def sort_routes(
    ids_ptr, sorted_ptr, counts_ptr, num_routes, num_experts, CHUNK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """One program per expert: its routes in ascending order, its count, its start. No atomics, so always the same."""
    expert = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    offs = tl.arange(0, CHUNK)
    below = tl.full((), 0, tl.int32)
    count = tl.full((), 0, tl.int32)
    for first in range(0, num_routes, CHUNK):
        ids = tl.load(ids_ptr + first + offs, mask=first + offs < num_routes, other=-1)
        below += tl.sum(((ids >= 0) & (ids < expert)).to(tl.int32), 0)
        count += tl.sum((ids == expert).to(tl.int32), 0)
    tl.store(counts_ptr + expert, count)
    tl.store(counts_ptr + num_experts + expert, below)
    done = below
    for first in range(0, num_routes, CHUNK):
        ids = tl.load(ids_ptr + first + offs, mask=first + offs < num_routes, other=-1)
        same = (ids == expert).to(tl.int32)
        rank = tl.cumsum(same, 0) - 1
        tl.store(sorted_ptr + done + rank, first + offs, mask=same != 0)
        done += tl.sum(same, 0)
