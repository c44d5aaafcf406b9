"""Memory that a checkpoint's weights take of each GPU, from the safetensors headers.

Routed experts are divided exactly: a rank holds `1/ep` of the experts of its pipeline stage, each cut by the ranks that
share it. Of the rest some tensors are cut and some (latent projections, norms, the router) are kept whole on every
rank, so the rest is given as a range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sglang_sm120.checkpoint import drafts
from sglang_sm120.checkpoint.shares import expert_ranks
from sglang_sm120.checkpoint.survey import Survey

GIB = 2**30


@dataclass(frozen=True)
class Weights:
    """Bytes of a checkpoint's tensors, unsharded.

    Attributes:
        experts: routed experts of the target.
        draft_experts: routed experts of the draft.
        rest, draft_rest: everything else.
    """

    experts: int = 0
    draft_experts: int = 0
    rest: int = 0
    draft_rest: int = 0

    def per_gpu(
        self, tp: int, pp: int, draft: bool, ep: int = 1, moe_dp: int = 1, copies: float = 1
    ) -> tuple[int, int]:
        """Least and most bytes that a rank holds; the draft is not cut by pp, and has no redundant experts."""
        experts = (self.experts * copies / pp + (self.draft_experts if draft else 0)) / (
            ep * expert_ranks(tp, ep, moe_dp)
        )
        rest = self.rest / pp + (self.draft_rest if draft else 0)
        return round(experts + rest / tp), round(experts + rest)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """GiB of each GPU.

    Attributes:
        gpu_memory_gib: the whole memory.
        static_gib: what SGLang gives to weights and KV cache together.
        weights_gib_least, weights_gib_most: the weights.
        fits: whether the least leaves anything of `static_gib`.
    """

    gpu_memory_gib: int
    static_gib: float
    weights_gib_least: float
    weights_gib_most: float
    fits: bool


def weigh(survey: Survey, layers: int | None) -> Weights | None:
    """Sum the tensors of a checkpoint whose target has that many layers; None when there are none."""
    sizes = {"experts": 0, "draft_experts": 0, "rest": 0, "draft_rest": 0}
    for kind, found in (("experts", survey.expert_bytes), ("rest", survey.other_bytes)):
        for block, size in found.items():
            sizes[f"draft_{kind}" if drafts.is_draft(block, layers) else kind] += size
    return Weights(**sizes) if survey.expert_bytes or survey.other_bytes else None


def with_draft(target: Weights | None, draft: Weights | None) -> Weights | None:
    """The target's weights with the draft of another checkpoint, or of the same."""
    if target is None or draft is None:
        return target
    return replace(target, draft_experts=draft.draft_experts, draft_rest=draft.draft_rest)


def budget(
    weights: Weights,
    memory_gib: int,
    tp: int,
    pp: int,
    draft: bool,
    static_fraction: float = 1.0,
    *,
    ep: int = 1,
    moe_dp: int = 1,
    copies: float = 1,
) -> Budget:
    """What the weights take of each GPU, and whether they leave anything of what SGLang gives them.

    Args:
        memory_gib: of each GPU.
        tp, pp, ep, moe_dp: parallel sizes of the launch.
        draft: whether it loads the checkpoint's draft.
        copies: experts that a layer of the target keeps for each one of the checkpoint; above 1 with redundant ones.
        static_fraction: `--mem-fraction-static` as resolved: the share of a GPU for weights and KV cache together.
    """
    least, most = weights.per_gpu(tp, pp, draft, ep, moe_dp, copies)
    return Budget(
        gpu_memory_gib=memory_gib,
        static_gib=round(memory_gib * static_fraction, 2),
        weights_gib_least=round(least / GIB, 2),
        weights_gib_most=round(most / GIB, 2),
        fits=least < memory_gib * static_fraction * GIB,
    )
