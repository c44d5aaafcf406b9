"""The patches, in the order in which they are applied. Importing this applies nothing and imports no SGLang."""

from sglang_sm120.patches import (
    cutlass_swiglu_limit,
    deepseek_v4_gate,
    deterministic_attention,
    draft_format,
    marlin_routed_scaling,
    mxfp4_experts,
    mxfp4_nextn,
    runner_name,
    weight_updates,
)

PATCHES = (
    runner_name.PATCH,
    deepseek_v4_gate.PATCH,
    cutlass_swiglu_limit.PATCH,
    marlin_routed_scaling.PATCH,
    draft_format.PATCH,
    mxfp4_nextn.PATCH,
    mxfp4_experts.PATCH,
    weight_updates.PATCH,
    deterministic_attention.PATCH,
)
