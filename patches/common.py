"""Upstream code that several patches rely on."""

from __future__ import annotations

from sglang_sm120 import releases
from sglang_sm120.contracts import Target

# The class that our MoE method derives from.
METHOD_BASE = Target(
    "sglang.srt.layers.quantization.base_config",
    "FusedMoEMethodBase",
    releases.spans({"0.5.14": "55a3295e33f2", "0.5.19": "e0674847c231", "0.5.23": "412d2b682788"}),
)
