"""The prepared layout: a bijection on each expert's bytes, and a decode that gives every code its value."""

from __future__ import annotations

import re

import pytest
import torch

from sglang_sm120.kernels.sm120 import mxfp4_moe as moe
from sglang_sm120.kernels.sm120.mxfp4_moe import layout

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
    w = moe.prepare_weights(*tensors)
    for mine, given in zip((w.w13, w.w13_scale, w.w2, w.w2_scale), tensors, strict=True):
        assert mine.data_ptr() == given.data_ptr()
        assert mine.shape == given.shape
    assert not torch.equal(w.w13, before[0])
    for restored, original in zip(moe.restore_weights(w), before, strict=True):
        assert torch.equal(restored, original)


def test_an_expert_is_repacked_alone():
    """One expert overwritten after a restore and prepared again is what preparing it from the start gives."""
    a, b = layer(3, 96, 64, 1), layer(3, 96, 64, 2)
    mixed = [t.clone() for t in a]
    for m, other in zip(mixed, b, strict=True):
        m[1] = other[1]
    w = moe.prepare_weights(*(t.clone() for t in a))
    restored = moe.restore_weights(w)
    for r, other in zip(restored, b, strict=True):
        r[1] = other[1]
    again, direct = moe.prepare_weights(*restored), moe.prepare_weights(*mixed)
    assert torch.equal(again.w13, direct.w13)
    assert torch.equal(again.w2_scale, direct.w2_scale)


def run_ptx(ptx: str, word: torch.Tensor, outputs: int) -> list[torch.Tensor]:
    """What the decode's few PTX instructions do to int64 tensors that hold 32-bit words."""
    full = (1 << 32) - 1
    registers: dict[str, torch.Tensor] = {f"${outputs}": word}

    def value(name: str) -> torch.Tensor | int:
        return registers[name] if name in registers else int(name, 0)

    for line in ptx.splitlines():
        found = re.match(r"(shf\.l\.wrap\.b32|shl\.b32|shr\.u32|and\.b32|lop3\.b32) (.*);", line)
        if not found:
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
        else:
            assert rest[1] == 0xEA
            registers[target] = (a & b) | rest[0]
    return [registers[f"${i}"] for i in range(outputs)]


def packed(codes: torch.Tensor) -> torch.Tensor:
    """codes [n, 8] (lo0 .. lo3, hi0 .. hi3) -> prepared words, int64."""
    word = sum(codes[:, i] << 4 * i for i in range(8))
    return layout.permute_bits(word.to(torch.int32), layout.TO_PREPARED).to(torch.int64) & ((1 << 32) - 1)


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def every_code_everywhere() -> torch.Tensor:
    return torch.cat([(torch.arange(16)[:, None] + torch.arange(8) * step) % 16 for step in range(16)])


def test_bf16_decode_is_exact_for_every_code_in_every_place():
    codes = every_code_everywhere()
    registers = run_ptx(layout.decode_ptx(layout.bf16_terms()), packed(codes), 4)
    halves = torch.stack([h for r in registers for h in (r & 0xFFFF, r >> 16)], 1)
    values = halves.to(torch.int32).to(torch.uint16).view(torch.bfloat16).to(torch.float64) * 2.0**126
    assert torch.equal(values, E2M1[codes])
    assert torch.equal(torch.signbit(values), torch.signbit(E2M1[codes]))


def test_e4m3_decode_is_exact_for_every_code_in_every_place():
    codes = every_code_everywhere()
    registers = run_ptx(layout.decode_ptx(layout.fp8_terms()), packed(codes), 2)
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
