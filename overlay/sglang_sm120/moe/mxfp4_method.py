"""The MoE method for MXFP4 experts: their parameters, and what the life cycle and the kernel ask of the format."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from sglang_sm120.kernels.sm120 import fp4_moe
from sglang_sm120.moe.base import Sm120MoEMethod, byte_view, register
from sglang_sm120.moe.ledger import SCALE, WEIGHT
from sglang_sm120.settings import RUNNER

GROUP = 32  # values that share an e8m0 scale (OCP Microscaling Formats v1.0)
UNFILLED = 0xFF  # e8m0 NaN: no checkpoint has it, so a scale that still is was never loaded
DUMMY_SCALE = 0x73  # 2^-12: with random codes the layer keeps activations small
_BLOCK_SCALE = {"quant_method": "block", "format_ue8m0": False}
_SCALES = ("w13_weight_scale_inv", "w2_weight_scale_inv")


class Mxfp4Format:
    """MXFP4: e2m1 codes, and an e8m0 scale for each 32 of a row."""

    name = "MXFP4"
    kinds: tuple[str, ...] = (WEIGHT, SCALE)
    parameters: tuple[str, ...] = ("w13_weight", "w13_weight_scale_inv", "w2_weight", "w2_weight_scale_inv")
    wide_are = "have scales outside 2^-27 to 2^65"
    narrow_are = "with scales inside that range"

    def add_parameters(
        self, layer: torch.nn.Module, name: str, shape: tuple[int, int, int], attributes: dict[str, Any]
    ) -> None:
        """The codes and scales of w13 or w2."""
        *outer, columns = shape
        scales = torch.full((*outer, columns // GROUP), UNFILLED, dtype=torch.uint8).view(torch.float8_e8m0fnu)
        register(layer, f"{name}_weight", torch.empty(*outer, columns // 2, dtype=torch.int8), attributes)
        register(layer, f"{name}_weight_scale_inv", scales, attributes | _BLOCK_SCALE)

    def fill_dummy(self, layer: torch.nn.Module) -> None:
        """A small scale everywhere: the codes may be anything."""
        for name in _SCALES:
            byte_view(layer, name).fill_(DUMMY_SCALE)

    def unfilled(self, layer: torch.nn.Module) -> str | None:
        """The first parameter and expert with a scale that is NaN."""
        for name in _SCALES:
            largest = byte_view(layer, name).flatten(1).amax(1).tolist()
            if UNFILLED in largest:
                return f"{name} of local expert {largest.index(UNFILLED)}"
        return None

    def is_wide(self, layer: torch.nn.Module) -> bool:
        """Whether a scale is outside 2^-27 to 2^65."""
        return fp4_moe.scales_are_wide(*(byte_view(layer, name) for name in _SCALES))

    def prepare(self, layer: torch.nn.Module, wide: bool) -> fp4_moe.PreparedWeights:
        """Repack codes and scales in place, for the variant given."""
        weights = fp4_moe.prepare_mxfp4(*(byte_view(layer, name) for name in self.parameters))
        return dataclasses.replace(weights, wide_scales=wide)

    def restore(self, weights: fp4_moe.PreparedWeights) -> None:
        """Codes and scales as the checkpoint has them, in place."""
        fp4_moe.restore(weights)

    def says(self, prefix: str, wide: bool, unknown: bool) -> tuple[object, str] | None:
        """A line for the log about the variant chosen, and the key under which it is said once."""
        if wide:
            said = f"{RUNNER} takes its wide-range kernel for {prefix}: scales are outside 2^-27 to 2^65"
            return ("wide", prefix), said
        if unknown:
            said = "CUDA graphs are captured before the experts' scales are known"
            return ("wide", "unknown"), f"{RUNNER} takes its wide-range kernel: {said}"
        return None


class Sm120Mxfp4MoEMethod(Sm120MoEMethod):
    """Triton MXFP4 experts (`sm120_triton`)."""

    format = Mxfp4Format
