"""Random experts as a checkpoint has them: what SGLang's loader gets, and the rank's share for the float64 reference.

Codes are uniform, scales bring a part of the gates to the clamp. NVFP4 experts with odd numbers have another global
scale for up than for gate; the even ones have one for both, as some kernels take gate's for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sglang_sm120.checkpoint.shares import expert_ranks
from sglang_sm120.kernels.sm120 import fp4_moe

APART = 0.5  # up's global scale over gate's, in odd experts
_LARGEST = 448 * 6  # e4m3 times e2m1
_X, _Z = 20.0, 100.0  # largest inputs of the two products: of the clamp case, and the square of the clamp


@dataclass(frozen=True)
class Sizes:
    """A layer: routed experts, widths, top-k, parallel sizes, clamp and the factor on its output."""

    experts: int
    hidden: int
    inter: int
    top_k: int
    tp: int
    ep: int
    clamp: float | None
    factor: float

    @property
    def local_experts(self) -> int:
        return self.experts // self.ep

    @property
    def columns(self) -> int:
        """Of an expert's intermediate size, on one rank."""
        return self.inter // expert_ranks(self.tp, self.ep)


class RandomExperts:
    """A layer's experts; `tensors` draws them anew, the same each time, and keeps rank 0's share.

    Args:
        sizes: of the layer.
        nvfp4: their format; MXFP4 otherwise.
        block: of the checkpoint, as in `layers.0`.
        device, seed: where and from what they are drawn.
    """

    def __init__(self, sizes: Sizes, nvfp4: bool, block: str, device: torch.device, seed: int = 0) -> None:
        self.sizes, self.nvfp4, self.block, self.device, self.seed = sizes, nvfp4, block, device, seed
        e, h, i = sizes.local_experts, sizes.hidden, sizes.columns
        group = 16 if nvfp4 else 32

        def empty(*size: int) -> torch.Tensor:
            return torch.empty(size, dtype=torch.uint8, device=device)

        self.codes = empty(e, 2 * i, h // 2), empty(e, h, i // 2)
        self.scales = empty(e, 2 * i, h // group), empty(e, h, i // group)
        self.factors = torch.ones(e, 3, dtype=torch.float32, device=device)  # gate, up, down

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The checkpoint's names and tensors, unsharded, expert by expert."""
        g = torch.Generator(device=self.device).manual_seed(self.seed)
        h, i = self.sizes.hidden, self.sizes.inter
        for expert in range(self.sizes.experts):
            factor = self._factors(g, expert) if self.nvfp4 else [1.0] * 3
            if expert < self.sizes.local_experts:
                self.factors[expert] = torch.tensor(factor)
            for number, (name, rows, columns) in enumerate((("w1", i, h), ("w3", i, h), ("w2", h, i))):
                codes = self._draw(g, 0, 256, rows, columns // 2)
                scale = self._scale(g, rows, columns)
                if expert < self.sizes.local_experts:
                    self._keep(expert, number, codes, scale)
                yield from self._named(f"{self.block}.ffn.experts.{expert}.{name}", codes, scale, factor[number])

    def reference(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """float64 [T, H]: rank 0's share of the layer, for global expert ids [T, K]; -1 is nobody."""
        s = self.sizes
        local = torch.where((ids >= 0) & (ids < s.local_experts), ids, -1)
        given: dict[str, Any] = {"swiglu_limit": s.clamp, "routed_scaling_factor": s.factor}
        (w13, w2), (s13, s2) = self.codes, self.scales
        if not self.nvfp4:
            return fp4_moe.reference.mxfp4_moe(x, w13, s13, w2, s2, local, weights, **given)
        both, down = self.factors[:, :2], self.factors[:, 2]
        return fp4_moe.reference.nvfp4_moe(x, w13, s13, both, w2, s2, down, local, weights, **given)

    def _draw(self, g: torch.Generator, low: int, high: int, *size: int) -> torch.Tensor:
        return torch.randint(low, high, size, dtype=torch.uint8, device=self.device, generator=g)

    def _scale(self, g: torch.Generator, rows: int, columns: int) -> torch.Tensor:
        if self.nvfp4:
            return self._draw(g, 0x30, 0x41, rows, columns // 16)  # 0.5 to 2
        middle = 127 - (columns.bit_length() + 1) // 2  # random codes have an rms of 2.9: gates then have one of 3
        return self._draw(g, middle - 1, middle + 3, rows, columns // 32)

    def _factors(self, g: torch.Generator, expert: int) -> list[float]:
        gate, down = (0.75 + 0.5 * torch.rand(2, device=self.device, generator=g)).tolist()
        first, second = (2.0 ** -((n.bit_length() - 1) // 2) for n in (self.sizes.hidden, self.sizes.inter))
        return [gate * first, gate * first * (APART if expert % 2 else 1.0), down * second]

    def _keep(self, expert: int, number: int, codes: torch.Tensor, scale: torch.Tensor) -> None:
        i, group = self.sizes.columns, 16 if self.nvfp4 else 32
        for whole, kept, per_column in ((codes, self.codes, 2), (scale, self.scales, group)):
            if number == 2:
                kept[1][expert] = whole[:, : i // per_column]
            else:
                kept[0][expert, number * i : (number + 1) * i] = whole[:i]

    def _named(
        self, name: str, codes: torch.Tensor, scale: torch.Tensor, factor: float
    ) -> Iterator[tuple[str, torch.Tensor]]:
        if not self.nvfp4:
            yield f"{name}.weight", codes.view(torch.int8)
            yield f"{name}.scale", scale.view(torch.float8_e8m0fnu)
            return
        yield f"{name}.weight", codes
        yield f"{name}.weight_scale", scale.view(torch.float8_e4m3fn)
        for part, value in (("weight_scale_2", factor), ("input_scale", (_Z if "w2" in name else _X) / _LARGEST)):
            yield f"{name}.{part}", torch.tensor(value, dtype=torch.float32, device=self.device)
