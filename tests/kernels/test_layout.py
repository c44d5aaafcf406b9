"""The prepared layout: a bijection on each expert's bytes, and a decode that gives every code its value."""

from __future__ import annotations

import re
import types

import numpy as np
import pytest
import torch
import triton.language as tl
from layers import form_of
from triton.runtime import interpreter

from sglang_sm120.kernels.sm120 import fp4_moe as moe
from sglang_sm120.kernels.sm120.fp4_moe import runtime
from sglang_sm120.kernels.sm120.fp4_moe.device.product_wgmma import _scaled_weights
from sglang_sm120.kernels.sm120.fp4_moe.host import program
from sglang_sm120.kernels.sm120.fp4_moe.weights import layout, nvfp4

SHAPES = [(1, 32, 32), (2, 96, 64), (3, 64, 96), (2, 160, 288), (1, 352, 192), (2, 256, 576)]


def layer(experts: int, hidden: int, inter: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, generator=g, dtype=torch.uint8)

    return (
        draw(experts, 2 * inter, hidden // 2), draw(experts, 2 * inter, hidden // 32),
        draw(experts, hidden, inter // 2), draw(experts, hidden, inter // 32),
    )  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_restore_undoes_prepare_in_place(shape):
    tensors = layer(*shape)
    before = [t.clone() for t in tensors]
    w = moe.prepare_mxfp4(*tensors)
    for mine, given in zip((w.w13, w.w13_scale, w.w2, w.w2_scale), tensors, strict=True):
        assert mine.data_ptr() == given.data_ptr()
        assert mine.shape == given.shape
    assert not torch.equal(w.w13, before[0])
    for restored, original in zip(moe.restore(w), before, strict=True):
        assert torch.equal(restored, original)


def test_an_expert_is_repacked_alone():
    """One expert overwritten after a restore and prepared again is what preparing it from the start gives."""
    a, b = layer(3, 96, 64, 1), layer(3, 96, 64, 2)
    mixed = [t.clone() for t in a]
    for m, other in zip(mixed, b, strict=True):
        m[1] = other[1]
    w = moe.prepare_mxfp4(*(t.clone() for t in a))
    restored = moe.restore(w)
    for r, other in zip(restored, b, strict=True):
        r[1] = other[1]
    again, direct = moe.prepare_mxfp4(*restored), moe.prepare_mxfp4(*mixed)
    assert torch.equal(again.w13, direct.w13)
    assert torch.equal(again.w2_scale, direct.w2_scale)


def times_bf16x2(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """mul.rn.bf16x2 of int64 tensors that hold 32-bit words."""

    def halves(words: torch.Tensor) -> torch.Tensor:
        pair = torch.stack([words & 0xFFFF, words >> 16], -1)
        return pair.to(torch.int32).to(torch.uint16).view(torch.bfloat16).to(torch.float64)

    product = (halves(a) * halves(b)).to(torch.bfloat16).view(torch.uint16).to(torch.int64)
    return product[..., 0] | product[..., 1] << 16


def run_ptx(ptx: str, outputs: list[str], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What the decode's few PTX instructions do to int64 tensors that hold 32-bit words.

    outputs: their constraints; one without & may be the register of an input, so no input may be read after it.
    """
    full = (1 << 32) - 1
    registers: dict[str, torch.Tensor] = {f"${len(outputs) + i}": t for i, t in enumerate(inputs)}
    lost = False

    def value(name: str) -> torch.Tensor | int:
        if name not in registers:
            return int(name, 0)
        assert not (lost and name.startswith("$") and int(name[1:]) >= len(outputs))
        return registers[name]

    for line in ptx.splitlines():
        found = re.match(r"(shf\.l\.wrap\.b32|shl\.b32|shr\.u32|and\.b32|lop3\.b32|mul\.rn\.bf16x2) (.*);", line)
        if not found:
            assert re.match(r"[{}]|\.reg", line)
            continue
        target, *arguments = [a.strip() for a in found[2].split(",")]
        a, b, *rest = (value(x) for x in arguments)
        if found[1] == "shf.l.wrap.b32":
            registers[target] = ((a << rest[0]) | (a >> (32 - rest[0]))) & full
        elif found[1] == "shl.b32":
            registers[target] = (a << b) & full
        elif found[1] == "shr.u32":
            registers[target] = a >> b
        elif found[1] == "and.b32":
            registers[target] = a & b
        elif found[1] == "mul.rn.bf16x2":
            registers[target] = times_bf16x2(a, b)
        else:
            assert rest[1] == 0xEA
            registers[target] = (a & b) | rest[0]
        lost |= target in [f"${i}" for i, constraint in enumerate(outputs) if "&" not in constraint]
    return [registers[f"${i}"] for i in range(len(outputs))]


def packed(codes: torch.Tensor) -> torch.Tensor:
    """codes [n, 8] (lo0 .. lo3, hi0 .. hi3) -> prepared words, int64."""
    word = sum(codes[:, i] << 4 * i for i in range(8))
    return layout.permute_bits(word.to(torch.int32), layout.TO_PREPARED).to(torch.int64) & ((1 << 32) - 1)


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def every_code_everywhere() -> torch.Tensor:
    return torch.cat([(torch.arange(16)[:, None] + torch.arange(8) * step) % 16 for step in range(16)])


def test_bf16_decode_is_exact_for_every_code_in_every_place():
    codes = every_code_everywhere()
    registers = run_ptx(layout.decode_ptx(layout.bf16_terms()), ["=&r"] * 4, packed(codes))
    halves = torch.stack([h for r in registers for h in (r & 0xFFFF, r >> 16)], 1)
    values = halves.to(torch.int32).to(torch.uint16).view(torch.bfloat16).to(torch.float64) * 2.0**126
    assert torch.equal(values, E2M1[codes])
    assert torch.equal(torch.signbit(values), torch.signbit(E2M1[codes]))


def test_e4m3_decode_is_exact_for_every_code_in_every_place():
    codes = every_code_everywhere()
    registers = run_ptx(layout.decode_ptx(layout.fp8_terms()), ["=&r"] * 2, packed(codes))
    data = torch.stack([(r >> 8 * i) & 255 for r in registers for i in range(4)], 1).to(torch.uint8)
    values = data.view(torch.float8_e4m3fn).to(torch.float64) * 64
    order = torch.tensor([*layout.FP8_ORDER, *(4 + i for i in layout.FP8_ORDER)])
    assert torch.equal(values, E2M1[codes[:, order]])


def test_decode_cost():
    """What the layout was searched for: instructions per 8 weights."""
    for terms, cost in ((layout.bf16_terms(), 9), (layout.fp8_terms(), 11)):
        lines = [line for line in layout.decode_ptx(terms).splitlines() if re.match(r"sh|and|lop3", line)]
        assert len(lines) == cost


def test_wgmma_finds_a_word_in_one_thread():
    """Of 16 neighbouring columns a thread of four holds 2t, 2t + 1, 2t + 8, 2t + 9 (PTX, wgmma's matrix A)."""
    assert sorted(layout.WGMMA_ORDER) == list(range(32))
    for first in (0, 16):
        for t in range(4):
            held = [layout.WGMMA_ORDER[first + 2 * t + i] for i in (0, 1, 8, 9)]
            assert held == list(range(held[0], held[0] + 4))
            assert held[0] % 4 == 0


@pytest.fixture
def ptx_on_cpu(monkeypatch):
    """Triton's interpreter with the decode's assembly, and with products of bf16 that are numbers and not bits."""

    def create_inline_asm(self, ptx, constraints, values, types_, is_pure, pack):
        outputs = [c for c in constraints.split(",") if c.startswith("=")]
        if not ptx:
            return types.SimpleNamespace(get_result=lambda i: values[i])
        words = [torch.from_numpy(v.data.astype(np.int64) & 0xFFFFFFFF) for v in values]
        made = [r.numpy().astype(np.uint32).view(np.int32) for r in run_ptx(ptx, outputs, *words)]
        return types.SimpleNamespace(get_result=lambda i: interpreter.TensorHandle(made[i], tl.int32))

    def create_dot(self, a, b, d, *_):
        a, b = ((t.data.astype(np.uint32) << 16).view(np.float32) for t in (a, b))
        return interpreter.TensorHandle(np.matmul(a, b) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_inline_asm", create_inline_asm)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@runtime.kernel
def scaled_weights(words_ptr, scales_ptr, out_ptr, BN: tl.constexpr, SB: tl.constexpr, NV: tl.constexpr):
    row, superblock = tl.arange(0, BN)[:, None], tl.arange(0, SB)[None, :]
    words = tl.load(words_ptr + row * (SB * 8) + tl.arange(0, SB * 8)[None, :])
    scales = tl.load(scales_ptr + row * SB + superblock).to(tl.int32)
    made = _scaled_weights(words, scales, BN, SB, NV, True)
    tl.store(out_ptr + row * (SB * 64) + tl.arange(0, SB * 64)[None, :], made)


@pytest.mark.parametrize("superblocks", [1, 2])
def test_wgmma_weights_are_exact_with_every_scale_that_is_not_wide(superblocks, ptx_on_cpu):
    """As the GPU decodes and scales them: every code under scale bytes 66 .. 192, in wgmma's order, times 2**-64."""
    rows = 64 // superblocks
    codes = torch.cat([every_code_everywhere()] * 2)[torch.randperm(512, generator=torch.Generator().manual_seed(0))]
    scale = torch.arange(66, 194).clamp(max=192).reshape(rows, superblocks, 2)
    out = torch.empty(rows, superblocks * 64, dtype=torch.bfloat16)
    words = packed(codes).to(torch.int32)
    assert int(words.min()) < 0
    pairs = (scale[..., 0] | scale[..., 1] << 8).to(torch.int32).to(torch.int16)
    scaled_weights.interpret((1,), [words, pairs, out], {"BN": rows, "SB": superblocks, "NV": False})
    blocks = codes.reshape(rows, superblocks, 8, 2, 4).transpose(2, 3).reshape(rows, superblocks, 2, 32)
    want = E2M1[blocks[..., list(layout.WGMMA_ORDER)]] * torch.exp2(scale[..., None].double() - 127 - 64)
    assert torch.equal(out.double(), want.reshape(rows, -1))


@pytest.mark.parametrize("superblocks", [1, 2])
def test_wgmma_weights_are_exact_with_every_scale_of_nvfp4(superblocks, ptx_on_cpu):
    """As the GPU decodes and scales them: every code under the 126 scales above 0, times 2**-7."""
    rows = 64 // superblocks
    codes = torch.cat([every_code_everywhere()] * 2)[torch.randperm(512, generator=torch.Generator().manual_seed(1))]
    out = torch.empty(rows, superblocks * 64, dtype=torch.bfloat16)
    for first in (1, 63):
        scale = (torch.arange(256) % 64 + first).to(torch.uint8).reshape(rows, superblocks, 4)
        scales = nvfp4.to_e5m3(scale).contiguous().view(torch.int32)
        given = [packed(codes).to(torch.int32), scales, out]
        scaled_weights.interpret((1,), given, {"BN": rows, "SB": superblocks, "NV": True})
        blocks = codes.reshape(rows, superblocks, 8, 2, 4).transpose(2, 3).reshape(rows, superblocks, 2, 32)
        want = E2M1[blocks] * scale.view(torch.float8_e4m3fn).double().repeat_interleave(16, -1).view(blocks.shape)
        want = want[..., list(layout.WGMMA_ORDER)].reshape(rows, -1) * 2.0**-7
        assert torch.equal(out.double(), want)


def test_the_products_of_sm90_as_the_gpu_computes_them(ptx_on_cpu, sm90):
    """The whole layer with the assembly; the interpreter cuts its results off to bf16, three times up to 2**-8."""
    tokens, hidden, inter = 40, 128, 64
    g = torch.Generator().manual_seed(1)
    tensors = [t.clamp(119, 124) if i % 2 else t for i, t in enumerate(layer(1, hidden, inter))]
    x, ids = torch.randn(tokens, hidden, generator=g).bfloat16(), torch.zeros(tokens, 1, dtype=torch.int32)
    weights = torch.ones(tokens, 1)
    want = moe.reference.mxfp4_moe(x, *tensors, ids, weights)
    made = program.Program(form_of(x, ids, 1, inter))
    products = [s for s in made.steps if "WGMMA" in s.options]
    assert [s.options["WGMMA"] for s in products] == [True, True]
    for step in products:
        step.options["ASM"] = True
    y = torch.empty_like(x)
    made.run(x, moe.prepare_mxfp4(*tensors), ids, weights, y)
    assert float((y.double() - want).norm() / want.norm()) <= 1.2e-2
