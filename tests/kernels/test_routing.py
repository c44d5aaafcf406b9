"""Every program finds its group, whatever the ids are: by comparing them all, and by the table of `sort_routes`."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl

from sglang_sm120.kernels.sm120.fp4_moe.device import groups
from sglang_sm120.kernels.sm120.fp4_moe.device.groups import own_group_by_scan, own_group_by_table
from sglang_sm120.kernels.sm120.fp4_moe.runtime import kernel


@kernel
def groups_by_scan(ids_ptr, out_ptr, num_routes, num_experts, BT: tl.constexpr, ASM: tl.constexpr):
    expert, routes, count = own_group_by_scan(ids_ptr, tl.program_id(0), num_routes, num_experts, BT, ASM)
    row = out_ptr + tl.program_id(0) * (BT + 2)
    tl.store(row, expert)
    tl.store(row + 1, count)
    tl.store(row + 2 + tl.arange(0, BT), routes)


@kernel
def groups_by_table(sorted_ptr, table_ptr, out_ptr, BT: tl.constexpr):
    expert, routes, count = own_group_by_table(sorted_ptr, table_ptr, tl.program_id(0), BT)
    row = out_ptr + tl.program_id(0) * (BT + 2)
    tl.store(row, expert)
    tl.store(row + 1, count)
    tl.store(row + 2 + tl.arange(0, BT), routes)


def launch(fn, grid, args, **constants):
    if args[0].is_cuda:
        fn.compiled[grid](*args, **constants)
    else:
        fn.interpret(grid, args, constants)


def found(ids, experts, width, scan, device):
    """[(expert, its routes)] of as many programs as the schedule launches at most."""
    n = len(ids)
    most = n if scan else min(n, min(n, experts) + n // width)
    out = torch.full((most, 2 + width), -7, dtype=torch.int32, device=device)
    if scan:
        launch(groups_by_scan, (most,), (ids, out, n, experts), BT=width, ASM=device == "cuda")
    else:
        order = torch.full((n,), 2**30, dtype=torch.int32, device=device)
        table = torch.full((1 + most, 4), 2**30, dtype=torch.int32, device=device)
        bins = 1 << experts.bit_length()
        launch(
            groups.sort_routes, (experts,), (ids, order, table, n, experts), CHUNK=1024, EP=bins, BT=width, PDL=False
        )
        launch(groups_by_table, (most,), (order, table, out), BT=width)
    rows = out.tolist()
    used = [row for row in rows if row[1]]
    assert rows[: len(used)] == used  # programs without a group are the last ones
    return [(expert, routes[:count]) for expert, count, *routes in used]


def wanted(ids, experts, width, scan):
    of = {}
    for route, expert in enumerate(ids.tolist()):
        if 0 <= expert < experts:
            of.setdefault(expert, []).append(route)
    groups = [(e, routes[i : i + width]) for e, routes in of.items() for i in range(0, len(routes), width)]
    return sorted(groups, key=lambda g: g[1][0] if scan else (g[0], g[1][0]))


OUTSIDE = (-1, 5, 2**31 - 1, 2**31, 2**31 + 3, 2**32, 2**32 + 1, -(2**32) + 2, -(2**40), 2**40 + 1, -(2**63), 2**63 - 1)
CASES = {
    "random": lambda n: torch.randint(0, 5, (n,)),
    "one expert": lambda n: torch.full((n,), 4),
    "none": lambda n: torch.full((n,), -1),
    "full groups": lambda n: torch.arange(n) // 8 % 5,
    "far outside": lambda n: torch.tensor([OUTSIDE[i // 2 % len(OUTSIDE)] if i % 2 else i % 5 for i in range(n)]),
    "only outside": lambda n: torch.tensor([OUTSIDE[i % len(OUTSIDE)] for i in range(n)]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("n", "scan"), [(1, True), (31, True), (32, True), (1, False), (33, False), (1100, False)])
def test_groups(n, scan, case, device):
    torch.manual_seed(n)
    ids = CASES[case](n).to(device)
    for width in (8, 32):
        assert found(ids, 5, width, scan, device) == wanted(ids, 5, width, scan)


@pytest.mark.parametrize("experts", [1, 2, 8, 9])
@pytest.mark.parametrize("scan", [True, False])
def test_experts_at_powers_of_two(experts, scan, device):
    ids = (torch.arange(32) * 7 % (experts + 1)).to(torch.int32).to(device)  # one beyond the last
    assert found(ids, experts, 8, scan, device) == wanted(ids, experts, 8, scan)
