"""Interpreted calls leave Triton as it was; what is kept of a call serves that call alone and launches it right."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch
import triton
import triton.language as tl
from layers import random_nvfp4
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from sglang_sm120.kernels.sm120 import fp4_moe as moe
from sglang_sm120.kernels.sm120.fp4_moe import layer, runtime
from sglang_sm120.kernels.sm120.fp4_moe.device import gemm, groups, reduce
from sglang_sm120.kernels.sm120.fp4_moe.host import program


def test_an_interpreted_call_leaves_triton_as_it_was():
    before = {name: value for name, value in vars(tl).items() if callable(value)}
    members = {name: value for name, value in vars(tl.tensor).items() if not name.startswith("__")}
    w13, w2 = torch.zeros(1, 64, 16, dtype=torch.uint8), torch.zeros(1, 32, 16, dtype=torch.uint8)
    scale = torch.full((1, 64, 1), 127, dtype=torch.uint8)
    w = moe.prepare_mxfp4(w13, scale, w2, scale[:, :32].clone())
    x, ids = torch.ones(1, 32, dtype=torch.bfloat16), torch.zeros(1, 1, dtype=torch.int32)
    assert (moe.fp4_moe(x, w, ids, torch.ones(1, 1)) == 0).all()
    assert {name: value for name, value in vars(tl).items() if callable(value)} == before
    assert {name: value for name, value in vars(tl.tensor).items() if not name.startswith("__")} == members
    assert isinstance(tl.sum, JITFunction)


def test_every_kernel_takes_pointers_then_numbers_then_constants():
    """The direct launch hands addresses, numbers and constants to the compiled kernel in this order."""
    found = [k for m in (gemm, reduce, groups) for k in vars(m).values() if isinstance(k, runtime.Kernel)]
    assert len(found) >= 6
    for kernel in found:
        rank = [2 if p.is_constexpr else not p.name.endswith("_ptr") for p in kernel.compiled.params]
        assert rank == sorted(rank), kernel.__name__
        counts = {p.name for p in kernel.compiled.params if p.do_not_specialize}
        assert counts == {p.name for p in kernel.compiled.params} & set(runtime.COUNTS)


def small_layer(experts=4, hidden=64, inter=32):
    g = torch.Generator().manual_seed(1)
    w13 = torch.randint(0, 256, (experts, 2 * inter, hidden // 2), generator=g, dtype=torch.uint8)
    w2 = torch.randint(0, 256, (experts, hidden, inter // 2), generator=g, dtype=torch.uint8)
    s13 = torch.full((experts, 2 * inter, hidden // 32), 121, dtype=torch.uint8)
    s2 = torch.full((experts, hidden, inter // 32), 121, dtype=torch.uint8)
    return moe.prepare_mxfp4(w13, s13, w2, s2)


def small_call(tokens=3, hidden=64, top_k=2, experts=4):
    g = torch.Generator().manual_seed(2)
    x = torch.randn(tokens, hidden, generator=g).bfloat16()
    ids = torch.rand(tokens, experts, generator=g).topk(top_k).indices.to(torch.int32)
    return x, ids, torch.rand(tokens, top_k, generator=g)


@pytest.fixture
def recorded(monkeypatch):
    """The GPU's way for CPU tensors: (kernel, what Triton's runner got) of each launch, and the tensors in play."""
    made = []

    def ready(self, index, args, options, early=False):
        compiled = object.__new__(CompiledKernel)
        vars(compiled).update(
            _run=lambda *given: made.append((self, given)), module=1, function=7, packed_metadata=(4, 1, 0),
            name=self.__name__, src=None, metadata=None,
        )  # fmt: skip
        return compiled

    monkeypatch.setattr(runtime, "is_compiled", lambda device: True)
    monkeypatch.setattr(runtime, "current_stream", lambda index: 5)
    monkeypatch.setattr(runtime.Kernel, "ready", ready)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(CompiledKernel, "__del__", lambda self: None, raising=False)
    layer._call.cache_clear()
    yield made
    layer._call.cache_clear()


BAD = {
    "x": ({"x": torch.zeros(3, 64)}, "x is torch.float32"),
    "x width": ({"x": torch.zeros(3, 96, dtype=torch.bfloat16)}, r"x has shape \(3, 96\)"),
    "x no tensor": ({"x": [1]}, "x is list"),
    "x device": ({"x": torch.zeros(3, 64, dtype=torch.bfloat16, device="meta")}, "x is on meta"),
    "ids": ({"topk_ids": torch.zeros(3, 2)}, "topk_ids is torch.float32"),
    "ids tokens": ({"topk_ids": torch.zeros(4, 2, dtype=torch.int32)}, "topk_ids has shape"),
    "slots": ({"topk_ids": torch.zeros(3, 33, dtype=torch.int32)}, "33 slots"),
    "weights": ({"topk_weights": torch.zeros(3, 2).double()}, "topk_weights is torch.float64"),
    "weights shape": ({"topk_weights": torch.zeros(3, 3)}, "topk_weights has shape"),
    "w": ({"w": None}, "w is NoneType"),
    "out": ({"out": torch.zeros(3, 64)}, "out is torch.float32"),
    "out strides": ({"out": torch.zeros(64, 3, dtype=torch.bfloat16).t()}, "out has strides"),
    "out rows": ({"out": torch.zeros(1, 64, dtype=torch.bfloat16).expand(3, 64)}, "expected rows that do not overlap"),
    "limit": ({"swiglu_limit": -1.0}, "swiglu_limit is -1.0"),
    "limit list": ({"swiglu_limit": [1.0]}, "swiglu_limit is"),
    "factor": ({"routed_scaling_factor": float("nan")}, "routed_scaling_factor is nan"),
    "activation": ({"activation": ["bf16"]}, "activation is"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_is_refused_after_good_calls(recorded, name):
    """What is kept of a good call does not let a bad one through, the second time neither."""
    w, (x, ids, weights) = small_layer(), small_call()
    good = {"x": x, "w": w, "topk_ids": ids, "topk_weights": weights, "out": torch.empty_like(x)}
    changes, says = BAD[name]
    moe.fp4_moe(**good)
    for _ in range(2):
        with pytest.raises(ValueError, match=says):
            moe.fp4_moe(**good | changes)
    with pytest.raises(ValueError, match="out shares memory with x,"):
        moe.fp4_moe(**good | {"out": x})


def placed(buffer, byte, like, row_bytes=None):
    """A tensor in the buffer that holds what another does, from a byte on."""
    flat, size = buffer[byte:].view(like.dtype), like.element_size()
    made = flat.as_strided(like.shape, ((row_bytes or like.shape[1] * size) // size, 1))
    return made.copy_(like)


ROW = 64 * 2  # bytes of a token in bf16
SHARED = {  # bytes into one buffer: out, and another tensor; row bytes of both, or packed
    "x, a row later": ("x", ROW, 0, None),
    "x, two bytes of the last row": ("x", 3 * ROW - 2, 0, None),
    "x, a row earlier": ("x", 0, ROW, None),
    "x, a column of a wider buffer": ("x", ROW - 16, 0, 4 * ROW),
    "x, a column of the next row": ("x", 3 * ROW + 16, 0, 4 * ROW),
    "topk_ids": ("topk_ids", 0, 3 * ROW - 8, None),
    "topk_weights": ("topk_weights", 16, 0, None),
}


@pytest.mark.parametrize("case", SHARED)
def test_out_shares_no_memory_with_what_is_read(recorded, case):
    name, at_out, at_other, row_bytes = SHARED[case]
    x, ids, weights = small_call()
    given, buffer = {"x": x, "topk_ids": ids, "topk_weights": weights}, torch.zeros(16 * ROW, dtype=torch.uint8)
    given[name] = placed(buffer, at_other, given[name], row_bytes)
    out = placed(buffer, at_out, torch.zeros_like(x), row_bytes)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^out shares memory with {name}, which is read until the end"):
            moe.fp4_moe(w=small_layer(), out=out, **given)
    assert recorded == []


@pytest.mark.parametrize(("at_out", "row_bytes"), [(3 * ROW, None), (ROW, 4 * ROW), (3 * ROW, 4 * ROW)])
def test_out_beside_x_in_one_buffer_is_taken(at_out, row_bytes):
    """Behind its last row, or in columns of its rows that are not its own."""
    x, ids, weights = small_call()
    w, buffer = small_layer(), torch.zeros(16 * ROW, dtype=torch.uint8)
    beside = placed(buffer, 0, x, row_bytes)
    out = placed(buffer, at_out, torch.zeros_like(x), row_bytes)
    assert torch.equal(moe.fp4_moe(beside, w, ids, weights, out=out), moe.fp4_moe(x, w, ids, weights))
    assert torch.equal(beside, x)


def test_a_call_does_not_take_the_launch_of_another():
    """Calls of one shape that differ in one thing give what they give when nothing is kept."""
    w, (x, ids, weights) = small_layer(), small_call(2, top_k=1)
    wide = torch.zeros(2, 160, dtype=torch.bfloat16)
    wide[:, :64] = x
    calls = [
        {}, {"swiglu_limit": 0.01}, {"swiglu_limit": None}, {"routed_scaling_factor": 2.0}, {"activation": "mxfp8"},
        {"topk_ids": ids.long()}, {"x": wide[:, :64]}, {"topk_weights": torch.stack([weights, weights], 1)[:, 0]},
        {"topk_ids": torch.zeros(3, dtype=torch.int32)[1:].view(2, 1).copy_(ids)}, {"batch_invariant": True},
        {"w": dataclasses.replace(w, wide_scales=True)},
    ]  # fmt: skip
    calls = [{"x": x, "w": w, "topk_ids": ids, "topk_weights": weights} | c for c in calls]
    together = [moe.fp4_moe(**c) for c in calls]
    for call, got in zip(calls, together, strict=True):
        layer._call.cache_clear()
        assert torch.equal(moe.fp4_moe(**call), got)
    assert not torch.equal(together[0], together[1])


@pytest.mark.parametrize(("tokens", "activation"), [(3, "bf16"), (60, "bf16"), (60, "mxfp8"), (3, "nvfp4")])
def test_a_launch_gets_the_right_addresses(recorded, monkeypatch, tokens, activation):
    """Each pointer is the tensor or the part of one allocation that the kernel's parameter stands for."""
    spaces = []
    empty = torch.empty

    def remember(*size, **options):
        spaces.append(empty(*size, **options))
        return spaces[-1]

    programs, run = [], program.Program.run
    monkeypatch.setattr(program.Program, "run", lambda self, *given: (programs.append(self), run(self, *given)))
    w, (x, ids, weights) = small_layer(), small_call(tokens)
    if activation == "nvfp4":
        w, activation = moe.prepare_nvfp4(*random_nvfp4(4, 64, 32, 0, "cpu")), "bf16"
    out = torch.empty_like(x)
    monkeypatch.setattr(torch, "empty", remember)
    moe.fp4_moe(x, w, ids, weights, activation=activation, out=out)
    (space,) = spaces
    given = {"w13": w.w13, "w2": w.w2, "weights": weights, "y": out, "s13": w.w13_scale, "s2": w.w2_scale}
    expected = {t.data_ptr(): name for name, t in (given | {"x": x, "ids": ids}).items()}
    names = [k.__name__ for k, _ in recorded]
    assert names[-3:] == ["gate_up", "down", "combine"]
    assert len(names) == 3 + (tokens > 31) + (activation == "mxfp8")
    parts = set()
    for kernel, (_, _, _, stream, function, _, data, enter, leave, *args) in recorded:
        assert (stream, function, data, enter, leave) == (5, 7, None, None, None)
        assert len(args) == len(kernel.compiled.params)
        for name, value in zip(kernel.compiled.arg_names, args, strict=True):
            if name == "g_ptr":
                globals_ = {"gate_up": w.w13_global, "down": w.w2_global}[kernel.__name__]
                assert value == (None if globals_ is None else globals_.data_ptr())
            elif name.endswith("_ptr") and value not in expected:
                assert space.data_ptr() <= value < space.data_ptr() + space.numel()
                assert value % program.ALIGNMENT == 0
                parts.add(value)
        by_name = dict(zip(kernel.compiled.arg_names, args, strict=True))
        if kernel.__name__ == "combine":
            assert [expected.get(by_name[n]) for n in ("weights_ptr", "y_ptr", "ids_ptr")] == ["weights", "y", "ids"]
        if kernel.__name__ in ("gate_up", "down"):
            number = "13" if kernel.__name__ == "gate_up" else "2"
            assert expected[by_name["w_ptr"]] == f"w{number}"
            assert expected[by_name["s_ptr"]] == f"s{number}"
            assert by_name["num_routes"] == ids.numel()
    (made,) = programs
    ends = [o + b.bytes for o, b in zip(made.offsets, made.buffers, strict=True)]
    assert all(end <= start for end, start in zip(ends, made.offsets[1:], strict=False))
    assert parts == {min(parts) + offset for offset in made.offsets}
    assert min(parts) + ends[-1] <= space.data_ptr() + space.numel()


def test_profilers_hooks_are_called_and_only_theirs(recorded, monkeypatch):
    w, (x, ids, weights) = small_layer(), small_call()
    moe.fp4_moe(x, w, ids, weights)
    assert {given[6:9] for _, given in recorded} == {(None, None, None)}
    recorded.clear()
    chain = triton.knobs.HookChain()
    chain.add(lambda metadata: None)
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", chain)
    moe.fp4_moe(x, w, ids, weights)
    assert [(given[6].get()["name"], given[7]) for _, given in recorded] == [
        (name, chain) for name in ("gate_up", "down", "combine")
    ]


def test_the_direct_launch_gives_tritons_runner_what_the_public_one_gives(recorded, monkeypatch):
    assert runtime.DIRECT
    w, (x, ids, weights) = small_layer(), small_call()
    chain = triton.knobs.HookChain()
    chain.add(lambda metadata: None)
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", chain)
    monkeypatch.setattr(triton.knobs.runtime, "launch_exit_hook", chain)
    out = torch.empty_like(x)
    addresses = set()
    for direct in (True, False):
        monkeypatch.setattr(runtime, "DIRECT", direct)
        layer._call.cache_clear()
        moe.fp4_moe(x, w, ids, weights, out=out)
    half = len(recorded) // 2
    for (_, a), (_, b) in zip(recorded[:half], recorded[half:], strict=True):
        assert [type(v) for v in a] == [type(v) for v in b]
        # the workspace may be elsewhere the second time
        differing = [i for i, (v, u) in enumerate(zip(a, b, strict=True)) if v != u and i != 6]
        assert all(a[i] > 2**31 for i in differing)
        addresses.update(a[9:])
    assert {t.data_ptr() for t in (x, ids, weights, out, w.w13, w.w2)} <= addresses
