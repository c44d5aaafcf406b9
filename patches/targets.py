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

_LAYER = "sglang.srt.layers.moe.fused_moe_triton.layer"
# How a checkpoint's tensors get to our parameters: which branch a name takes, and where in a parameter it is put.
EXPERT_LOADER = tuple(
    Target(_LAYER, f"FusedMoE.{name}", releases.spans(changes))
    for name, changes in {
        "_weight_loader_impl": {
            "0.5.14": "c4f9ad0616fe",
            "0.5.15": "ebcdbd06831f",
            "0.5.18": "e0042dc7b171",
            "0.5.22": "fb0a0253b3a3",
            "0.5.23": "ba0dd2a9aa49",
        },
        "_load_model_weight_or_group_weight_scale": {"0.5.14": "3449c6c40dbb", "0.5.22": "cb43bd4b6b98"},
        "_load_per_tensor_weight_scale": {"0.5.14": "8aaddd481792"},
        "_load_single_value": {"0.5.14": "613780f45c1d"},
        "_load_w13": {
            "0.5.14": "6b1b7ef722cf",
            "0.5.17": "68b59455c452",
            "0.5.22": "29fe5ae6f155",
            "0.5.23": "bf86ce803d20",
        },
        "_load_w2": {
            "0.5.14": "5a275392ae88",
            "0.5.17": "ae7d0a1f71a1",
            "0.5.22": "ec2066cb6e6b",
            "0.5.23": "b364fabcf302",
        },
    }.items()
)
