"""Placeholder of the MoE method for NVFP4 experts on SM120: what is decided for a layer shows, and nothing runs."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.quantization.base_config import FusedMoEMethodBase


class Sm120Nvfp4MoEMethod(FusedMoEMethodBase):
    """Triton NVFP4 experts (`sm120_triton`).

    Args:
        prefix: module name of the layer, for messages.
        activation: `bf16` (W4A16).
    """

    fuse_routed_scaling_factor_in_topk = False
    load_up_proj_weight_first = False

    def __init__(self, prefix: str, activation: str = "bf16") -> None:
        self.prefix = prefix
        self.activation = activation

    def create_weights(self, layer: torch.nn.Module, *_args: Any, **_attributes: Any) -> None:
        """No parameters; `plan` builds layers to see their method."""

    def create_moe_runner(self, layer: torch.nn.Module, moe_runner_config: Any) -> None:
        """Keep the layer's configuration."""
        self.config = moe_runner_config

    def get_moe_runner_backend(self, layer: torch.nn.Module) -> None:
        """None: a direct kernel that takes standard top-k with local expert ids."""
        return None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Not there yet."""
        raise NotImplementedError

    def apply(self, layer: torch.nn.Module, dispatch_output: Any) -> Any:
        """Not there yet."""
        raise NotImplementedError
