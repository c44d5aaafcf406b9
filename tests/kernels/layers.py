"""Random layers, calls and forms for the tests of the kernel."""

from __future__ import annotations

import torch

from sglang_sm120.kernels.sm120 import fp4_moe
from sglang_sm120.kernels.sm120.fp4_moe.host import program


def pack(codes: torch.Tensor) -> torch.Tensor:
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)


def random_layer(experts: int, hidden: int, inter: int, seed: int, device: str, low: int = 119, high: int = 124):
    g = torch.Generator().manual_seed(seed)

    def draw(a: int, b: int, *shape: int) -> torch.Tensor:
        return torch.randint(a, b, shape, generator=g, dtype=torch.uint8).to(device)

    return (
        draw(0, 256, experts, 2 * inter, hidden // 2), draw(low, high, experts, 2 * inter, hidden // 32),
        draw(0, 256, experts, hidden, inter // 2), draw(low, high, experts, hidden, inter // 32),
    )  # fmt: skip


def random_nvfp4(experts: int, hidden: int, inter: int, seed: int, device: str, apart: float = 1.0):
    """The six tensors of an NVFP4 layer; a few scales are subnormal or the largest. apart: up's global over gate's."""
    g = torch.Generator().manual_seed(seed)

    def draw(a: int, b: int, *shape: int) -> torch.Tensor:
        return torch.randint(a, b, shape, generator=g, dtype=torch.uint8)

    def scales(*shape: int) -> torch.Tensor:
        common, rare = draw(0x2E, 0x46, *shape), torch.rand(shape, generator=g)  # 0.4 .. 3.5
        found = torch.where(rare < 0.02, draw(1, 8, *shape), torch.where(rare < 0.021, 0x7E, common))
        return found.to(device)

    gate = 2.0**-8 * (1 + torch.rand(experts, generator=g))
    return (
        draw(0, 256, experts, 2 * inter, hidden // 2).to(device), scales(experts, 2 * inter, hidden // 16),
        torch.stack([gate, gate * apart], 1).to(device), draw(0, 256, experts, hidden, inter // 2).to(device),
        scales(experts, hidden, inter // 16), (2.0**-7 * (1 + torch.rand(experts, generator=g))).to(device),
    )  # fmt: skip


def as_nvfp4(w13: torch.Tensor, s13: torch.Tensor, w2: torch.Tensor, s2: torch.Tensor, exponent: int = -7):
    """An MXFP4 layer written as NVFP4 without changing a value: globals 2**exponent and up, up's twice gate's."""

    def cast(scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        value = torch.exp2(scale.double() - 127 - shift[..., None, None]).to(torch.float8_e4m3fn)
        return value.view(torch.uint8).repeat_interleave(2, dim=-1)

    experts, rows = w13.shape[:2]
    first = exponent + torch.arange(experts) % 2
    both = torch.stack([first, first + 1], 1)
    halves = cast(s13.view(experts, 2, rows // 2, -1).cpu(), both).reshape(experts, rows, -1)
    device = w13.device
    return (
        w13, halves.to(device), torch.exp2(both.float()).to(device), w2, cast(s2.cpu(), first).to(device),
        torch.exp2(first.float()).to(device),
    )  # fmt: skip


def random_call(tokens: int, top_k: int, experts: int, hidden: int, seed: int, device: str):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=g).to(torch.bfloat16)
    ids = torch.rand(tokens, experts, generator=g).topk(top_k).indices.to(torch.int32)
    weights = torch.rand(tokens, top_k, generator=g) + 0.1
    return x.to(device), ids.to(device), (weights / weights.sum(-1, keepdim=True)).to(device)


def relative(y: torch.Tensor, want: torch.Tensor) -> float:
    return float((y.double() - want).norm() / want.norm())


def form_of(
    x: torch.Tensor,
    ids: torch.Tensor,
    experts: int,
    inter: int,
    *,
    hidden: int = 0,
    mxfp8: bool = False,
    fp8: bool = False,
    weights: fp4_moe.Format = fp4_moe.MXFP4,
) -> program.Form:
    """A call's form, with an output of its own; hidden: columns of x that count (0: all)."""
    hidden = hidden or x.shape[1]
    return program.Form(
        device=x.device, tokens=ids.shape[0], top_k=ids.shape[1], experts=experts, hidden=hidden, inter=inter,
        ids=ids.dtype, x_stride=x.stride(0), y_stride=hidden, y_aligned=True, limit=10.0, factor=1.0, mxfp8=mxfp8,
        fp8=fp8, batch_invariant=False, wide_scales=False, format=weights,
    )  # fmt: skip
