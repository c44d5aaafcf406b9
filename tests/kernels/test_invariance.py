"""A token's bits whatever its batch, for every plan: the interpreter adds as tensor cores do, 16 columns at a time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from layers import form_of, random_call, random_layer, random_nvfp4
from triton.runtime import interpreter

from sglang_sm120.kernels.sm120 import fp4_moe as moe
from sglang_sm120.kernels.sm120.fp4_moe.host import program

COLUMNS = 16  # of one MMA: their products are added at once, and then to the sum


def chained(builder, a, b, d, input_precision, max_num_imprecise_acc):
    """A product as a chain of MMAs: numpy's own order of additions would depend on the tile.

    Sums keep 12 bits, so that another order shows through the bf16 of the intermediate.
    """
    total = d.data
    for k in range(0, a.data.shape[-1], COLUMNS):
        columns = slice(k, k + COLUMNS)
        group = a.data[..., columns].astype(np.float64) @ b.data[..., columns, :].astype(np.float64)
        bits = (total + group).astype(np.float32).view(np.int32)
        total = ((bits + 0x800) & ~0xFFF).view(np.float32)
    return interpreter.TensorHandle(total, d.dtype.scalar)


@pytest.fixture
def tensor_cores(monkeypatch):
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", chained)


def rows_and_plans(weights, hidden, inter, mxfp8, counts):
    """One token, first of batches of these sizes, as every plan computes it, and the plans."""
    draw, prepare = (random_layer, moe.prepare_mxfp4) if weights is moe.MXFP4 else (random_nvfp4, moe.prepare_nvfp4)
    w = prepare(*draw(1, hidden, inter, 9, "cpu"))
    x, ids, probabilities = random_call(max(counts), 1, 1, hidden, 10, "cpu")
    rows, plans = [], []
    for count in counts:
        form = form_of(x[:count], ids[:count], 1, inter, mxfp8=mxfp8, weights=weights)
        form = dataclasses.replace(form, batch_invariant=True)
        y = torch.empty(count, hidden, dtype=torch.bfloat16)
        program.Program(form).run(x[:count], w, ids[:count], probabilities[:count], y)
        plans.append(program.plan(form))
        rows.append(y[0])
    return rows, plans


@pytest.mark.parametrize(
    ("weights", "mxfp8", "hidden", "inter"),
    [(moe.MXFP4, False, 512, 128), (moe.MXFP4, True, 384, 64), (moe.NVFP4, False, 512, 128)],
    ids=str,
)
def test_wgmma_throughout(weights, mxfp8, hidden, inter, sm90, tensor_cores):
    """Widths of 8 to 128 tokens, steps of one, two and four superblocks, two or three places to begin."""
    rows, plans = rows_and_plans(weights, hidden, inter, mxfp8, (1, 10, 20, 40, 80))
    assert all(plan.many for plan in plans)
    assert [plan.gate_up.tokens for plan in plans] == [8, 16, 32, 64, 128]
    assert len({plan.gate_up.superblocks for plan in plans}) >= 2
    assert all(torch.equal(row, rows[0]) for row in rows)


@pytest.mark.parametrize("weights", [moe.MXFP4, moe.NVFP4], ids=lambda f: f.name)
def test_few_token_tiles_throughout(weights, tensor_cores):
    """As on SM120, and on SM90 where wgmma's tiles do not fit the layer."""
    rows, plans = rows_and_plans(weights, 256, 64, False, (1, 10, 36))
    assert not any(plan.many for plan in plans)
    assert [plan.gate_up.tokens for plan in plans] == [8, 16, 32]
    assert all(torch.equal(row, rows[0]) for row in rows)


def test_the_check_sees_another_order(tensor_cores, sm90):
    """Without `batch_invariant` a token that is alone takes another product than one of many."""
    w = moe.prepare_mxfp4(*random_layer(1, 512, 64, 9, "cpu"))
    x, ids, probabilities = random_call(40, 1, 1, 512, 10, "cpu")
    results = []
    for count in (1, 40):
        form = form_of(x[:count], ids[:count], 1, 64)
        y = torch.empty(count, 512, dtype=torch.bfloat16)
        program.Program(form).run(x[:count], w, ids[:count], probabilities[:count], y)
        results.append(y[0])
    assert not torch.equal(*results)
