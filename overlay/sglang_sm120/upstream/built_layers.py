"""What the overlay asks SGLang about a MoE layer that it has built, and about the batch that reaches it.

Imports are inside the functions: patches are imported in processes that have no model code.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from sglang_sm120.upstream.protocols import MoeLayer, TopK

if TYPE_CHECKING:
    from torch import Tensor


def is_fused_moe(layer: object) -> TypeGuard[MoeLayer]:
    """Whether the layer is SGLang's fused MoE layer."""
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE

    return isinstance(layer, FusedMoE)


def standard_topk(topk_output: Any) -> TopK:
    """Top-k ids and weights as tensors; a bypassed output computes them now."""
    from sglang.srt.layers.moe.topk import TopKOutputChecker

    if TopKOutputChecker.format_is_standard(topk_output):
        return cast(TopK, topk_output)
    if TopKOutputChecker.format_is_bypassed(topk_output):
        return cast(TopK, topk_output.to_standard())
    raise ValueError(f"top-k output has format {topk_output.format}; expected standard or bypassed")


def local_expert_ids(layer: MoeLayer, topk_ids: Tensor) -> Tensor:
    """Ids of this rank's experts, -1 elsewhere, whichever id space SGLang's dispatcher left them in.

    The dispatcher of SGLang 0.5.23 maps ids to local ones for our method; earlier dispatchers are keyed on the global
    runner (the target's, under DSpark), may keep global ids, and say so with `skip_local_expert_mapping`.
    """
    dispatcher = getattr(layer, "dispatcher", None)
    if layer.moe_ep_size == 1 or not getattr(dispatcher, "skip_local_expert_mapping", False):
        return topk_ids
    import torch

    shared = layer.num_fused_shared_experts
    routed = layer.num_local_experts - shared
    local = topk_ids - layer.moe_ep_rank * routed
    here = (local >= 0) & (local < routed)
    mapped = torch.where(here, local, -1)
    if shared:
        first_shared = layer.num_experts - shared
        mapped = torch.where(topk_ids >= first_shared, topk_ids - first_shared + routed, mapped)
    return mapped


def checkpoint_experts(layer: MoeLayer) -> list[int]:
    """Checkpoint numbers of the experts that this rank's slots hold, under EP and expert relocation."""
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata

    metadata = get_global_expert_location_metadata() if getattr(layer, "uses_expert_location", True) else None
    if metadata is None:
        return [e for e in range(layer.num_experts) if layer._map_global_expert_id_to_local_expert_id(e) != -1]
    routed = layer.num_local_experts - layer.num_fused_shared_experts
    first = layer.moe_ep_rank * routed
    return sorted(set(metadata.physical_to_logical_map_cpu[layer.layer_id, first : first + routed].tolist()))


def is_shared_expert(layer: MoeLayer, expert: int) -> bool:
    """Whether the loader's number of an expert is that of a shared one, which SGLang has put among the routed ones."""
    shared = layer.num_fused_shared_experts
    if not shared:
        return False
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata

    metadata = get_global_expert_location_metadata() if getattr(layer, "uses_expert_location", True) else None
    if metadata is not None:
        return expert >= int(metadata.num_logical_experts)
    return expert >= int(getattr(layer, "_num_global_routed", layer.num_experts - shared))


def empty_for_all_reduce(like: Tensor) -> Tensor:
    """An uninitialised tensor like the given one, in symmetric memory where SGLang's all-reduce wants that."""
    import torch

    use_symmetric_memory, is_allocation_symmetric, get_parallel = _symmetric_memory()
    with use_symmetric_memory(get_parallel().tp_group, disabled=not is_allocation_symmetric()):
        return torch.empty_like(like)


@functools.cache
def _symmetric_memory() -> tuple[Any, Any, Any]:
    """Imported once: an import statement in a forward costs a microsecond even when there is nothing to import."""
    from sglang.srt.distributed.device_communicators.pynccl_allocator import use_symmetric_memory
    from sglang.srt.layers.dp_attention import is_allocation_symmetric
    from sglang.srt.runtime_context import get_parallel

    return use_symmetric_memory, is_allocation_symmetric, get_parallel


def combine_input(hidden_states: Tensor) -> Any:
    """A layer's output as SGLang's standard dispatcher takes it."""
    return _combine_input_type()(hidden_states=hidden_states)


@functools.cache
def _combine_input_type() -> Any:
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput

    return StandardCombineInput
