"""The weight formats of the layer: e2m1 codes, and how their scales are stored and read."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Format:
    """How the scales of e2m1 codes are stored.

    Attributes:
        name: in tables and receipts.
        title: in messages.
        group: neighbouring codes of a row that share a scale.
        scales: the type as which kernels read the scales of a row and superblock of 64 columns at once.
        has_global: whether every expert's matrix has a float32 multiplier besides.
        has_mxfp8: whether activations in MXFP8 can meet these weights in a block-scaled MMA.
        has_ends: whether scales reach the ends of the float32 range, so that some layers need kernels with more range.
    """

    name: str
    title: str
    group: int
    scales: torch.dtype
    has_global: bool
    has_mxfp8: bool
    has_ends: bool

    @property
    def scale_bytes(self) -> int:
        """Of a row and superblock of 64 columns."""
        return 64 // self.group

    @property
    def bits(self) -> float:
        """Of a weight, with its share of the scales."""
        return 4 + 8 / self.group


MXFP4 = Format("mxfp4", "MXFP4", 32, torch.int16, has_global=False, has_mxfp8=True, has_ends=True)
NVFP4 = Format("nvfp4", "NVFP4", 16, torch.int32, has_global=True, has_mxfp8=False, has_ends=False)
# Outside these e8m0 bytes (2**-27 .. 2**65) MXFP4 kernels use more instructions for more range (see `product_bf16`).
NARROW_SCALES = (100, 192)
FORMATS = {f.name: f for f in (MXFP4, NVFP4)}
