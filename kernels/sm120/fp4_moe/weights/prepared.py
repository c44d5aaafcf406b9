"""One layer's experts in the kernel's layout."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import torch

from .formats import MXFP4, Format


class Facts(NamedTuple):
    """All of a layer's weights that decides how a call is made; `format` by its name."""

    device: torch.device
    experts: int
    hidden: int
    inter: int
    wide_scales: bool
    format: str


@dataclasses.dataclass(frozen=True)
class PreparedWeights:
    """One layer's routed experts in the kernel's layout; the tensors share storage with what was prepared.

    w13 uint8 [E, 2I, H/2], w13_scale uint8 [E, 2I, H/G], w2 uint8 [E, H, I/2], w2_scale uint8 [E, H, I/G]: the shapes
    are the checkpoint's, the order of the bytes within an expert is not, and NVFP4's scale bytes are encoded anew. G is
    the format's group. NVFP4 has w13_global float32 [E, 2] (gate, up) and w2_global float32 [E] besides, as given.

    `wide_scales`: some MXFP4 scale byte is below 100 or above 192, so the kernels must be exact at the ends of the
    float32 range. `cast_from`: NVFP4 where the weights were given as NVFP4 and hold MXFP4 values exactly; `format` is
    then MXFP4, and `given_scales` are the two tensors whose first halves hold the scales. A CUDA graph keeps the format
    and the range that it was captured with: capture again if weights replaced in place change them.
    """

    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor
    num_experts: int
    hidden_size: int
    intermediate_size: int
    wide_scales: bool
    format: Format = MXFP4
    w13_global: torch.Tensor | None = None
    w2_global: torch.Tensor | None = None
    cast_from: Format | None = None
    given_scales: tuple[torch.Tensor, torch.Tensor] | None = None

    @functools.cached_property
    def facts(self) -> Facts:
        """Gathered once: a call looks them up whole."""
        sizes = (self.num_experts, self.hidden_size, self.intermediate_size)
        return Facts(self.w13.device, *sizes, self.wide_scales, self.format.name)
