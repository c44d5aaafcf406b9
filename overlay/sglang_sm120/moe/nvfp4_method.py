"""The MoE method for NVFP4 experts: their parameters, and what the life cycle and the kernel ask of the format."""

from __future__ import annotations

from typing import Any

import torch

from sglang_sm120.kernels.sm120 import fp4_moe
from sglang_sm120.moe.base import Sm120MoEMethod, byte_view, register
from sglang_sm120.moe.ledger import BLOCK_SCALE, GLOBAL_SCALE, WEIGHT
from sglang_sm120.settings import RUNNER

GROUP = 16  # values that share an e4m3 scale
UNFILLED = 0x7F  # e4m3 NaN: no checkpoint has it, so a scale that still is was never loaded
DUMMY_SCALE, DUMMY_GLOBAL = 0x38, 2.0**-12  # 1 and 2^-12: with random codes the layer keeps activations small
_SCALES = ("w13_weight_scale", "w2_weight_scale")
_GLOBALS = ("w13_weight_scale_2", "w2_weight_scale_2")


class Nvfp4Format:
    """NVFP4: e2m1 codes, an e4m3 scale for each 16 of a row, a float32 multiplier for each matrix of an expert.

    The kernel for NVFP4 is right for all such weights. A layer whose weights are a lossless cast of MXFP4 runs as MXFP4
    instead, which gives the same numbers from fewer bytes.
    """

    name = "NVFP4"
    kinds: tuple[str, ...] = (WEIGHT, BLOCK_SCALE, GLOBAL_SCALE)
    parameters: tuple[str, ...] = (
        "w13_weight",
        "w13_weight_scale",
        "w13_weight_scale_2",
        "w2_weight",
        "w2_weight_scale",
        "w2_weight_scale_2",
    )
    wide_are = "are no lossless cast of MXFP4"
    narrow_are = "that are one"

    def add_parameters(
        self, layer: torch.nn.Module, name: str, shape: tuple[int, int, int], attributes: dict[str, Any]
    ) -> None:
        """The codes, scales and multipliers of w13 (gate's and up's) or w2, and no copy of them in another layout.

        `input_scale` is what a kernel for NVFP4 activations would need. The checkpoint has it, so the loader looks for
        its place; nothing reads it, and a checkpoint without it loads.
        """
        *outer, columns = shape
        experts, halves = shape[0], (2,) if name == "w13" else ()
        everywhere = int(layer.num_experts)  # on all ranks: SGLang gives this scale global expert numbers
        scales = torch.full((*outer, columns // GROUP), UNFILLED, dtype=torch.uint8).view(torch.float8_e4m3fn)
        factors = torch.full((experts, *halves), torch.nan, dtype=torch.float32)
        inputs = torch.ones(everywhere, *halves, dtype=torch.float32)
        register(layer, f"{name}_weight", torch.empty(*outer, columns // 2, dtype=torch.uint8), attributes)
        register(layer, f"{name}_weight_scale", scales, attributes | {"quant_method": "block"})
        register(layer, f"{name}_weight_scale_2", factors, attributes | {"quant_method": "tensor"})
        register(layer, f"{name}_input_scale", inputs, attributes | {"_sglang_require_global_experts": True})

    def fill_dummy(self, layer: torch.nn.Module) -> None:
        """Small scales everywhere: the codes may be anything."""
        for name in _SCALES:
            byte_view(layer, name).fill_(DUMMY_SCALE)
        for name in _GLOBALS:
            getattr(layer, name).data.fill_(DUMMY_GLOBAL)

    def unfilled(self, layer: torch.nn.Module) -> str | None:
        """The first parameter and expert with a scale that is NaN."""
        for name in (*_SCALES, *_GLOBALS):
            if name in _SCALES:
                unfilled = (byte_view(layer, name).flatten(1).amax(1) == UNFILLED).tolist()
            else:
                factors = getattr(layer, name).data
                unfilled = factors.isnan().reshape(len(factors), -1).any(1).tolist()
            if True in unfilled:
                return f"{name} of local expert {unfilled.index(True)}"
        return None

    def is_wide(self, layer: torch.nn.Module) -> bool:
        """Whether the weights need the kernel for NVFP4.

        Raises:
            ValueError: a scale is NaN or negative, or a multiplier is no finite number above 0.
        """
        tensors = self._tensors(layer)
        names = (_SCALES[0], _GLOBALS[0], _SCALES[1], _GLOBALS[1])
        fp4_moe.check_nvfp4(*tensors, names=names)
        w13_scale, w13_global, w2_scale, w2_global = tensors[1], tensors[2], tensors[4], tensors[5]
        return not fp4_moe.is_mxfp4_cast(w13_scale, w13_global, w2_scale, w2_global)

    def prepare(self, layer: torch.nn.Module, wide: bool) -> fp4_moe.PreparedWeights:
        """Repack codes and scales in place, for the kernel given."""
        return fp4_moe.prepare_nvfp4(*self._tensors(layer), cast=not wide)

    def restore(self, weights: fp4_moe.PreparedWeights) -> None:
        """Codes and scales as the checkpoint has them, in place."""
        fp4_moe.restore(weights)

    def says(self, prefix: str, wide: bool, unknown: bool) -> tuple[object, str] | None:
        """A line for the log about the kernel chosen, and the key under which it is said once."""
        if wide or unknown:
            return None
        said = f"{prefix}: NVFP4 that is a lossless cast of MXFP4; {RUNNER} runs it as MXFP4, the same numbers"
        return ("cast", prefix), said

    def _tensors(self, layer: torch.nn.Module) -> tuple[torch.Tensor, ...]:
        """In the order of `fp4_moe.prepare_nvfp4`."""
        views = (byte_view(layer, n) if n not in _GLOBALS else getattr(layer, n).data for n in self.parameters)
        return tuple(views)


class Sm120Nvfp4MoEMethod(Sm120MoEMethod):
    """Triton NVFP4 experts (`sm120_triton`), W4A16."""

    format = Nvfp4Format
