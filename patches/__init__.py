"""The patches, in the order in which they are applied. Importing this applies nothing and imports no SGLang."""

from sglang_sm120.patches import deepseek_v4_gate, mxfp4_experts, mxfp4_nextn, runner_name

PATCHES = (runner_name.PATCH, deepseek_v4_gate.PATCH, mxfp4_nextn.PATCH, mxfp4_experts.PATCH)
