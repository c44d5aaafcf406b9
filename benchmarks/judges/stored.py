"""Weights as checkpoints store them, and how this project reads them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from sglang_sm120.kernels.sm120.fp4_moe import reference

GROUPS = {"mxfp4": 32, "nvfp4": 16}  # codes that share a scale


class Stored(NamedTuple):
    """A matrix [N, K] of e2m1 codes, its first half of the rows gate's, the other up's.

    codes uint8 [N, K / 2], low nibble first; scale uint8 [N, K / G]: e8m0 (MXFP4) or e4m3 (NVFP4); factors float32 [2],
    the halves' global scales, None for MXFP4.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    factors: torch.Tensor | None = None

    @property
    def halves(self) -> tuple[Stored, Stored]:
        """Gate's and up's rows apart, each with its own global scale alone."""
        parts = zip(self.codes.chunk(2), self.scale.chunk(2), strict=True)
        factors = (None, None) if self.factors is None else self.factors.unbind()
        first, second = (Stored(c, s, f) for (c, s), f in zip(parts, factors, strict=True))
        return first, second


def read(w: Stored) -> torch.Tensor:
    """float64 [N, K], by the float64 reference that the kernel is held to."""
    if w.factors is None:
        return reference.dequantize(w.codes, w.scale)
    rows = w.factors.double().repeat_interleave(len(w.codes) // 2)
    return reference.dequantize_nvfp4(w.codes, w.scale) * rows[:, None]


def scales(w: Stored) -> torch.Tensor:
    """float64 [N, K]: what each code is multiplied by."""
    ones = torch.full_like(w.codes, 0x22)  # the code of 1.0, twice
    return read(w._replace(codes=ones))
