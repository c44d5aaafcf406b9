"""What only SM90 does, many tokens through wgmma, on CPU tensors in the interpreter."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from layers import form_of, random_call, random_layer, relative

from sglang_sm120.kernels.sm120 import fp4_moe as moe
from sglang_sm120.kernels.sm120.fp4_moe.device import reduce
from sglang_sm120.kernels.sm120.fp4_moe.host import program, schedule, tuning
from sglang_sm120.kernels.sm120.fp4_moe.weights import layout


@pytest.mark.parametrize(("tokens", "width"), [(10, 16), (20, 32), (50, 64), (150, 128)])
@pytest.mark.parametrize("inter", [192, 256])
@pytest.mark.parametrize("activation", ["exact", "mxfp8"])
def test_wide_groups_of_sm90(tokens, width, inter, activation, sm90):
    """The order in which wgmma's columns lie, in both products, from an x with a stride, in the interpreter."""
    tensors = random_layer(1, 128, inter, 3, "cpu")
    x, ids, weights = random_call(tokens, 1, 1, 128, 4, "cpu")
    want = moe.reference.mxfp4_moe(x, *tensors, ids, weights, activation=activation)
    x = torch.cat([x, torch.full((tokens, 16), float("nan"), dtype=x.dtype)], 1)
    form = form_of(x, ids, 1, inter, hidden=128, mxfp8=activation == "mxfp8")
    plan = program.plan(form)
    assert (plan.many, plan.gate_up.tokens) == (True, width)
    y = torch.empty(tokens, 128, dtype=torch.bfloat16)
    program.Program(form).run(x, moe.prepare_mxfp4(*tensors), ids, weights, y)
    assert relative(y, want) <= 3e-3


def test_bad_tokens_and_absent_experts_of_sm90(sm90):
    """Several experts, 64-bit ids that are nobody's, and a token of NaN."""
    tokens, hidden, inter, experts = 24, 128, 64, 3
    tensors = random_layer(experts, hidden, inter, 3, "cpu")
    x, ids, weights = random_call(tokens, 2, experts, hidden, 4, "cpu")
    ids = ids.long()
    ids[ids == 1] = -1  # a group of none
    ids[5, 0], ids[6, 1] = 2**32, experts
    form = form_of(x, ids, experts, inter)
    plan = program.plan(form)
    assert (plan.scan, plan.many) == (False, True)
    want = moe.reference.mxfp4_moe(x, *tensors, ids, weights)
    made, w, y = program.Program(form), moe.prepare_mxfp4(*tensors), torch.empty_like(x)
    made.run(x, w, ids, weights, y)
    assert relative(y, want) <= 3e-3
    x[7] = float("nan")
    spoilt = torch.empty_like(x)
    made.run(x, w, ids, weights, spoilt)
    others = torch.arange(tokens) != 7
    assert torch.equal(spoilt[others], y[others])
    assert spoilt[7].isnan().all() == bool((ids[7] >= 0).any())


@pytest.mark.parametrize("mxfp8", [False, True])
def test_reordered_rows_end_where_x_does(mxfp8):
    """Two programs a row, the second with three of its 32 blocks, and what lies behind the last row stays."""
    rows, columns, stride = 3, 1120, 1136
    x = torch.randn(rows, stride, generator=torch.Generator().manual_seed(0)).bfloat16()
    q = torch.full((rows * columns + 1024,), 7.0, dtype=torch.bfloat16)
    kernel, options = reduce.reorder_rows, {"K": columns, "BLOCKS": 32, "PDL": False}
    if mxfp8:
        kernel, options = reduce.round_rows_to_mxfp8, options | {"WGMMA": True, "ASM": False}
    kernel.interpret((rows, 2), [x, q, stride], options)
    want = x[:, :columns]
    if mxfp8:
        want = moe.reference.quantize_mxfp8(want.double()).bfloat16()
    want = want.reshape(rows, -1, 32)[..., list(layout.WGMMA_ORDER)].reshape(rows, columns)
    assert torch.equal(q[: rows * columns].reshape(rows, columns), want)
    assert (q[rows * columns :] == 7.0).all()


def test_only_sm90_reorders(monkeypatch):
    """On SM120 the first product reads x itself, in its own order. A program reorders 1024 columns."""
    monkeypatch.setattr(tuning, "_plan", tuning._plan.__wrapped__)
    form = form_of(torch.empty(100, 1152), torch.empty(100, 1, dtype=torch.int32), 1, 128)
    for sm90 in (False, True):
        monkeypatch.setattr(schedule, "is_sm90", lambda device, sm90=sm90: sm90)
        assert program.plan(form).many
        assert not program.plan(dataclasses.replace(form, limit=float("inf"))).many  # h would leave their range
        steps = program.steps(form)[0]
        reorder = [s.grid for s in steps if s.kernel.__name__ == "reorder_rows"]
        assert reorder == [(100, 2)] * sm90
        assert {s.options["WGMMA"] for s in steps if "WGMMA" in s.options} == {sm90}
