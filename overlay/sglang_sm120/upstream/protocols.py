"""What the overlay uses of SGLang's objects, for type checkers. SGLang itself takes minutes to analyse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class ResolvedFlags(Protocol):
    """SGLang's flags as far as they are resolved."""

    device: str
    model_path: str
    load_format: str
    tp_size: int
    ep_size: int
    moe_dp_size: int
    quantization: str | None
    moe_runner_backend: str
    moe_a2a_backend: str
    speculative_algorithm: str | None
    speculative_moe_runner_backend: str | None
    speculative_moe_a2a_backend: str | None
    speculative_draft_model_path: str | None
    speculative_draft_model_quantization: str | None
    use_ray: bool
    enable_deterministic_inference: bool


class MoeLayer(Protocol):
    """SGLang's FusedMoE."""

    layer_id: int
    num_experts: int
    num_local_experts: int
    num_fused_shared_experts: int
    moe_ep_size: int
    moe_ep_rank: int
    intermediate_size_per_partition: int
    quant_method: Any
    quant_config: Any
    moe_runner_config: Any
    should_fuse_routed_scaling_factor_in_topk: bool

    def _map_global_expert_id_to_local_expert_id(self, expert_id: int, /) -> int: ...


class TopK(Protocol):
    """Which experts each token goes to: ids int32 or int64 [T, K], weights float32 [T, K]."""

    topk_ids: Tensor
    topk_weights: Tensor
