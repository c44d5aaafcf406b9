"""Upstream code that several patches rely on."""

from __future__ import annotations

from sglang_sm120.patching import still_reached
from sglang_sm120.upstream import releases
from sglang_sm120.upstream.contracts import Target

# The class that our MoE method derives from.
METHOD_BASE = Target(
    "sglang.srt.layers.quantization.base_config",
    "FusedMoEMethodBase",
    releases.spans({"0.5.14": "55a3295e33f2", "0.5.19": "e0674847c231", "0.5.23": "412d2b682788"}),
)

# The loader's step at which `reach` looks once more whether SGLang still gets to the patches.
LOADER_STEP = Target(
    still_reached.LOADER,
    still_reached.CONFIGURES,
    releases.spans(
        {
            "0.5.14": "61381a6b77b2",
            "0.5.15": "1634aa3c03c4",
            "0.5.16": "170e4c8abfbd",
            "0.5.17": "f814e0cd45b7",
            "0.5.18": "4fada9ce7a05",
            "0.5.20": "b89ae432f84a",
        }
    ),
)
