"""Many tokens where the intermediate size is no whole number of steps, nor of row tiles: what is left is not lost."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch
from layers import form_of, random_call, random_layer, random_nvfp4, relative
from triton.runtime import interpreter

from sglang_sm120.kernels.sm120 import fp4_moe as moe
from sglang_sm120.kernels.sm120.fp4_moe.host import program

HIDDEN, EXPERTS = 128, 2
# SM120's steps are two superblocks of 64 columns, SM90's one: a superblock, half of one, or both are left.
SM120, SM90 = (192, 160, 224), (96, 160)


def check(inter: int, tokens: int, weights: moe.Format, activation: str = "bf16") -> None:
    """A layer's output, poisoned before, against float64.

    Three roundings to bf16 of at most 2**-9 each, one of MXFP4's RMS less; twice that with NVFP4 (`test_nvfp4`).
    Sixteen columns that are lost, or twice there, are 0.2 and more.
    """
    nv = weights == moe.NVFP4
    tensors = (random_nvfp4 if nv else random_layer)(EXPERTS, HIDDEN, inter, 3, "cpu")
    x, ids, probabilities = random_call(tokens, 1, EXPERTS, HIDDEN, 4, "cpu")
    ids[0] = EXPERTS - 1
    form = form_of(x, ids, EXPERTS, inter, mxfp8=activation == "mxfp8", weights=weights)
    assert program.plan(form).many
    rounding = {} if nv else {"activation": "mxfp8" if activation == "mxfp8" else "exact"}
    oracle = moe.reference.nvfp4_moe if nv else moe.reference.mxfp4_moe
    want = oracle(x, *tensors, ids, probabilities, **rounding)
    prepare = moe.prepare_nvfp4 if nv else moe.prepare_mxfp4
    y = torch.full((tokens, HIDDEN), float("nan"), dtype=torch.bfloat16)
    program.Program(form).run(x, prepare(*(t.clone() for t in tensors)), ids, probabilities, y)
    assert relative(y, want) <= (2 * 3**0.5 * 2.0**-9 if nv else 3e-3)


@pytest.mark.parametrize("inter", SM120)
@pytest.mark.parametrize("weights", [moe.MXFP4, moe.NVFP4], ids=lambda f: f.name)
def test_what_is_left_of_steps_on_sm120(inter, weights):
    check(inter, 70, weights)


@pytest.mark.parametrize("inter", SM90)
@pytest.mark.parametrize(("tokens", "weights"), [(30, moe.MXFP4), (70, moe.NVFP4), (150, moe.MXFP4)])
def test_what_is_left_of_steps_on_sm90(inter, tokens, weights, sm90):
    check(inter, tokens, weights)


def test_rounded_activations_on_sm90(sm90):
    check(96, 30, moe.MXFP4, "mxfp8")


@pytest.mark.parametrize("gpu", ["sm120", "sm90"])
def test_no_program_reads_behind_the_last_expert(gpu, request, monkeypatch):
    """A last tile that is not whole begins in the one before instead, and each value is written once."""
    if gpu == "sm90":
        request.getfixturevalue("sm90")
    guard = 1 << 20
    room = [torch.zeros(t.numel() + guard, dtype=torch.uint8) for t in random_layer(EXPERTS, HIDDEN, 160, 3, "cpu")]
    tensors = [
        r[: t.numel()].view(t.shape).copy_(t)
        for r, t in zip(room, random_layer(EXPERTS, HIDDEN, 160, 3, "cpu"), strict=True)
    ]
    starts = [t.data_ptr() + t.numel() for t in tensors]
    x, ids, probabilities = random_call(70, 1, EXPERTS, HIDDEN, 4, "cpu")
    made, w = program.Program(form_of(x, ids, EXPERTS, 160)), moe.prepare_mxfp4(*tensors)
    assert w.w13.data_ptr() == tensors[0].data_ptr()
    load, outside = interpreter._interpreter.load, []

    def watched(pointers, mask, *rest):
        read = pointers[mask]
        outside.extend(name for name, at in zip(("w13", "s13", "w2", "s2"), starts, strict=True)
                       if np.any((read >= at) & (read < at + guard)))  # fmt: skip
        return load(pointers, mask, *rest)

    store, written = interpreter._interpreter.store, collections.Counter()

    def counted(pointers, value, mask):
        written.update(pointers[mask].tolist())
        store(pointers, value, mask)

    monkeypatch.setattr(interpreter._interpreter, "load", watched)
    monkeypatch.setattr(interpreter._interpreter, "store", counted)
    made.run(x, w, ids, probabilities, torch.empty_like(x))
    assert outside == []
    assert max(written.values()) == 1
