"""The inputs that a layer is checked with and timed on; every process of a comparison draws the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from sglang_sm120.commands.one_runner.weights import Sizes

LARGE = 4.0  # of the clamp case's inputs: most gates and ups then end at the clamp
FEW = (6, 64)  # tokens of the special cases


@dataclass(frozen=True)
class Case:
    """One call of the layer.

    Attributes:
        name: for people, as in `uniform T=6`.
        x: bf16 [T, H].
        ids: global expert numbers int32 [T, K]; -1 in rows that pad a batch.
        weights: float32 [T, K].
        apart: uses experts whose gate and up have different global scales.
    """

    name: str
    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    apart: bool = False

    @property
    def tokens(self) -> int:
        return len(self.x)


def checked(sizes: Sizes, nvfp4: bool, tokens: Sequence[int], device: torch.device, seed: int) -> Iterator[Case]:
    """Uniform routing and one where all tokens share their experts, then the special cases.

    Only NVFP4 has global scales; its other cases keep to the experts that have one for gate and up. With expert
    parallelism every case has experts of other ranks, and one has rows of -1, as SGLang pads a captured batch.
    """
    every = torch.arange(sizes.experts, device=device)
    common = every[::2] if nvfp4 and sizes.experts >= 2 * sizes.top_k else every
    for t in tokens:
        yield _case("uniform", sizes, t, common, seed)
        if t > 1:
            yield _case("shared", sizes, t, common, seed)
    for t in (t for t in FEW if t in tokens):
        yield _case("clamp", sizes, t, common, seed)
        if nvfp4 and len(common) < len(every):
            yield _case("gate and up apart", sizes, t, every[1::2], seed)
        if sizes.ep > 1:
            yield _case("padded", sizes, t, common, seed)


def timed(sizes: Sizes, tokens: int, draws: int, device: torch.device, seed: int) -> list[Case]:
    """Uniform routing over all experts."""
    every = torch.arange(sizes.experts, device=device)
    return [_case("uniform", sizes, tokens, every, seed + 1 + number) for number in range(draws)]


def _case(kind: str, sizes: Sizes, tokens: int, experts: torch.Tensor, seed: int) -> Case:
    device = experts.device
    g = torch.Generator(device=device).manual_seed(100003 * seed + 17 * tokens + sum(kind.encode()))
    x = torch.randn(tokens, sizes.hidden, device=device, generator=g)
    rows = 1 if kind == "shared" else tokens
    chosen = torch.rand(rows, len(experts), device=device, generator=g).topk(sizes.top_k, -1).indices
    ids = experts[chosen].expand(tokens, -1).to(torch.int32).contiguous()
    weights = torch.rand(tokens, sizes.top_k, device=device, generator=g) + 0.1
    if kind == "padded":
        ids[tokens // 2 :] = -1
    x = (x * (LARGE if kind == "clamp" else 1.0)).bfloat16()
    return Case(f"{kind} T={tokens}", x, ids, weights / weights.sum(-1, keepdim=True), kind == "gate and up apart")
