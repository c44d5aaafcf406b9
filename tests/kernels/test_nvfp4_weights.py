"""NVFP4 experts made ready and given back: no byte lost, bad values refused by name, casts of MXFP4 found."""

from __future__ import annotations

import math

import pytest
import torch
from layers import as_nvfp4, random_call, random_layer, random_nvfp4

from sglang_sm120.kernels.sm120 import fp4_moe as moe
from sglang_sm120.kernels.sm120.fp4_moe.weights import nvfp4

NAMES = ("w13", "w13_scale", "w13_global", "w2", "w2_scale", "w2_global")
SHAPES = [(1, 32, 32), (2, 96, 64), (3, 64, 96), (2, 160, 288), (1, 352, 192), (2, 256, 576)]


def copies(tensors):
    return [t.clone() for t in tensors]


def same(restored, tensors):
    return [name for name, a, b in zip(NAMES, restored, tensors, strict=True) if not torch.equal(a, b)]


def all_scales(tensors):
    """The same layer with each of the 126 scales above 0 in turn."""
    made = copies(tensors)
    for i in (1, 4):
        made[i] = (torch.arange(made[i].numel()) % 126 + 1).to(torch.uint8).view(made[i].shape)
    return made


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn])
def test_restore_undoes_prepare_in_place(shape, dtype):
    tensors = all_scales(random_nvfp4(*shape, 0, "cpu"))
    given = copies(tensors)
    w = moe.prepare_nvfp4(*(t.view(dtype) if i in (1, 4) else t for i, t in enumerate(given)))
    assert (w.format, w.cast_from, w.wide_scales) == (moe.NVFP4, None, False)
    for name, t in zip(NAMES, given, strict=True):
        assert getattr(w, name).data_ptr() == t.data_ptr()
        assert getattr(w, name).shape == t.shape
    assert not torch.equal(w.w13, tensors[0])
    assert not torch.equal(w.w2_scale, tensors[4])
    assert same(moe.restore(w), tensors) == []


def test_an_expert_is_repacked_alone():
    a, b = (random_nvfp4(3, 96, 64, seed, "cpu") for seed in (1, 2))
    mixed = copies(a)
    restored = moe.restore(moe.prepare_nvfp4(*copies(a)))
    for m, r, other in zip(mixed, restored, b, strict=True):
        m[1] = r[1] = other[1]
    again, direct = moe.prepare_nvfp4(*restored), moe.prepare_nvfp4(*mixed)
    assert all(torch.equal(getattr(again, name), getattr(direct, name)) for name in NAMES)


def test_codes_under_a_scale_of_zero_come_back_as_zero():
    tensors = copies(random_nvfp4(2, 96, 64, 3, "cpu"))
    tensors[1][0, 3, 2] = tensors[4][1, 5, 3] = 0
    want = copies(tensors)
    want[0][0, 3, 16:24] = want[3][1, 5, 24:32] = 0
    assert not torch.equal(want[0], tensors[0])
    assert same(moe.restore(moe.prepare_nvfp4(*tensors)), want) == []


def test_a_scale_is_one_addition_away_from_bf16():
    """Every e4m3 value from 0 on has a byte of its own, and all but 0 are right as the kernels widen them."""
    byte = torch.arange(127, dtype=torch.uint8)
    prepared = nvfp4.to_e5m3(byte)
    assert torch.equal(nvfp4.from_e5m3(prepared), byte)
    value = byte.view(torch.float8_e4m3fn).double()
    pair = prepared.int() * 0x00100010 + 0x70007000
    for half in (pair & 0xFFFF, pair >> 16):
        assert torch.equal(half[1:].to(torch.uint16).view(torch.bfloat16).double(), value[1:] * 2.0**119)
    assert torch.equal(((prepared.int() << 20) + 0x34800000)[1:].view(torch.float32).double(), value[1:])


BAD = {
    "NaN": ("w13_scale", 0x7F, "w13_scale of expert 1 holds NaN"),
    "negative NaN": ("w2_scale", 0xFF, "w2_scale of expert 1 holds NaN"),
    "negative": ("w2_scale", 0xB8, "w2_scale of expert 1 holds a negative value .byte 0xb8."),
    "negative zero": ("w13_scale", 0x80, "w13_scale of expert 1 holds a negative value"),
    "global NaN": ("w13_global", math.nan, "w13_global of expert 1 is nan"),
    "global infinite": ("w2_global", math.inf, "w2_global of expert 1 is inf"),
    "global zero": ("w2_global", 0.0, "w2_global of expert 1 is 0.0"),
    "global negative": ("w13_global", -1.0, "w13_global of expert 1 is -1.0"),
    "global beyond the kernels": ("w2_global", 2.0**101, "w2_global of expert 1 is"),
}


@pytest.mark.parametrize("case", BAD)
def test_values_that_are_no_scales_are_refused_and_nothing_changes(case):
    name, value, says = BAD[case]
    tensors = copies(random_nvfp4(3, 96, 64, 4, "cpu"))
    tensors[1][2, 0, 0] = 0  # a code that would be set to 0
    tensors[NAMES.index(name)][1].view(-1)[-1] = value
    given = copies(tensors)
    with pytest.raises(ValueError, match=says):
        moe.prepare_nvfp4(*given)
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(given, tensors, strict=True))


def test_the_other_formats_scales_are_refused():
    mx, nv = random_layer(2, 96, 64, 5, "cpu"), random_nvfp4(2, 96, 64, 5, "cpu")
    with pytest.raises(ValueError, match=r"w13_scale has shape .*one scale per 16 codes"):
        moe.prepare_nvfp4(nv[0], mx[1], nv[2], nv[3], mx[3], nv[5])
    with pytest.raises(ValueError, match=r"w13_scale has shape .*one scale per 32 codes"):
        moe.prepare_mxfp4(nv[0], nv[1], nv[3], nv[4])
    with pytest.raises(ValueError, match="w13_global has strides"):
        moe.prepare_nvfp4(*nv[:2], nv[2].T.contiguous().T, *nv[3:])


def cast_layer(seed=6, low=116, high=125):
    mx = random_layer(3, 96, 64, seed, "cpu", low, high)
    return mx, as_nvfp4(*mx)


def test_a_cast_of_mxfp4_is_mxfp4_again(device):
    """The same bytes as from the MXFP4 checkpoint, in the memory given; and the NVFP4 tensors when restored."""
    mx, nv = cast_layer()
    given = [t.to(device) for t in copies(nv)]
    w, want = moe.prepare_nvfp4(*given), moe.prepare_mxfp4(*(t.to(device) for t in copies(mx)))
    assert (w.format, w.cast_from) == (moe.MXFP4, moe.NVFP4)
    for name in ("w13", "w13_scale", "w2", "w2_scale"):
        assert torch.equal(getattr(w, name), getattr(want, name)), name
    assert w.w13_scale.data_ptr() == given[1].data_ptr()
    x, ids, weights = random_call(3, 2, 3, 96, 7, device)
    assert torch.equal(moe.fp4_moe(x, w, ids, weights), moe.fp4_moe(x, want, ids, weights))
    assert torch.equal(
        moe.fp4_moe(x, w, ids, weights, activation="mxfp8"), moe.fp4_moe(x, want, ids, weights, activation="mxfp8")
    )
    assert same([t.cpu() for t in moe.restore(w)], nv) == []


def test_a_cast_may_have_all_of_e4m3s_powers_of_two_and_zeros():
    nv = copies(cast_layer()[1])
    scales = torch.tensor([0, 1, 2, 4, *range(8, 127, 8)], dtype=torch.uint8)
    for i in (1, 4):
        pairs = scales[torch.arange(nv[i].numel() // 2) % len(scales)]
        nv[i] = pairs.repeat_interleave(2).view(nv[i].shape)
    want = copies(nv)
    for i in (0, 3):
        want[i].view(*want[i + 1].shape, 8)[want[i + 1] == 0] = 0
    x, ids, weights = random_call(3, 2, 3, 96, 7, "cpu")
    oracle = moe.reference.nvfp4_moe(x, *nv, ids, weights)
    w = moe.prepare_nvfp4(*nv)
    assert w.cast_from == moe.NVFP4
    assert float((moe.fp4_moe(x, w, ids, weights).double() - oracle).norm() / oracle.norm()) < 3e-3
    assert same(moe.restore(w), want) == []


NO_CAST = {
    "a mantissa": ("w13_scale", 0, 0x39),
    "halves that differ": ("w2_scale", 1, 0x40),
    "one zero of two": ("w2_scale", 1, 0),
    "a global between powers of two": ("w13_global", 0, 0.75),
    "a scale below e8m0's": ("w2_global", 0, 2.0**-126),
}


@pytest.mark.parametrize("case", NO_CAST)
def test_what_mxfp4_cannot_hold_stays_nvfp4(case):
    """In the last expert, which is looked at last."""
    name, place, value = NO_CAST[case]
    nv = copies(cast_layer()[1])
    nv[4][-1, 0, :2] = 0x08  # 2**-6
    nv[NAMES.index(name)][-1].view(-1)[place] = value
    given = copies(nv)
    with pytest.raises(ValueError, match="w13_scale, w2_scale and the globals are not"):
        moe.prepare_nvfp4(*given, cast=True)
    assert same(given, nv) == []
    w = moe.prepare_nvfp4(*given)
    assert (w.format, w.cast_from) == (moe.NVFP4, None)
    assert same(moe.restore(w), nv) == [] or "zero" in case


def test_a_cast_is_left_alone_where_asked_to():
    nv = cast_layer()[1]
    w = moe.prepare_nvfp4(*copies(nv), cast=False)
    assert (w.format, w.cast_from) == (moe.NVFP4, None)
    assert moe.prepare_nvfp4(*copies(nv), cast=True).cast_from == moe.NVFP4


def test_slices_of_experts_meet_without_a_gap(monkeypatch):
    """As large layers are prepared: several slices, of which each is written over what was read before."""
    monkeypatch.setattr(nvfp4, "SLICE_BYTES", 1)
    mx, nv = cast_layer()
    w, want = moe.prepare_nvfp4(*copies(nv)), moe.prepare_mxfp4(*copies(mx))
    assert torch.equal(w.w13_scale, want.w13_scale)
    assert torch.equal(w.w2_scale, want.w2_scale)
    assert same(moe.restore(w), nv) == []


@pytest.mark.gpu
@pytest.mark.parametrize("cast", [False, True])
def test_preparing_needs_little_memory(cast, device):
    """V4-Pro's experts at TP2, 64 of them: slices beside the layer, on the way there and back."""
    tensors = random_nvfp4(64, 7168, 1536, 1, device)
    if cast:
        tensors = as_nvfp4(*random_layer(64, 7168, 1536, 1, device, 116, 125))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    w = moe.prepare_nvfp4(*tensors)
    assert (w.cast_from is not None) == cast
    moe.restore(w)
    assert torch.cuda.max_memory_allocated() - before < 128 << 20
