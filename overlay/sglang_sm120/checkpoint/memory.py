"""Memory that a checkpoint's weights take of each GPU, from the safetensors headers.

Routed experts are divided exactly: a rank holds `1/ep` of the experts of its pipeline stage, each cut by the ranks that
share it. Of the rest some tensors are cut and some (latent projections, norms, the router) are kept whole on every
rank, so the rest is given as a range.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sglang_sm120.checkpoint.inspection import tensor_headers
from sglang_sm120.checkpoint.shares import expert_ranks

GIB = 2**30
ROUTED = ".experts."
SHARED = ".shared_experts."
DRAFT = "mtp."


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

    def per_gpu(self, tp: int, pp: int, draft: bool, ep: int = 1, moe_dp: int = 1) -> tuple[int, int]:
        """Least and most bytes that a rank holds; the draft is not cut by pp."""
        experts = (self.experts / pp + (self.draft_experts if draft else 0)) / (ep * expert_ranks(tp, ep, moe_dp))
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


def weigh(directory: Path) -> Weights | None:
    """Sum the tensors of a checkpoint; None when no safetensors file is there. May raise CheckpointError."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        return None
    sizes = {"experts": 0, "draft_experts": 0, "rest": 0, "draft_rest": 0}
    for file in files:
        for name, entry in tensor_headers(file).items():
            begin, end = entry["data_offsets"]
            kind = "experts" if ROUTED in name and SHARED not in name else "rest"
            sizes[f"draft_{kind}" if name.startswith(DRAFT) else kind] += end - begin
    return Weights(**sizes)


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
) -> Budget:
    """What the weights take of each GPU, and whether they leave anything of what SGLang gives them.

    Args:
        memory_gib: of each GPU.
        tp, pp, ep, moe_dp: parallel sizes of the launch.
        draft: whether it loads the checkpoint's draft.
        static_fraction: `--mem-fraction-static` as resolved: the share of a GPU for weights and KV cache together.
    """
    least, most = weights.per_gpu(tp, pp, draft, ep, moe_dp)
    return Budget(
        gpu_memory_gib=memory_gib,
        static_gib=round(memory_gib * static_fraction, 2),
        weights_gib_least=round(least / GIB, 2),
        weights_gib_most=round(most / GIB, 2),
        fits=least < memory_gib * static_fraction * GIB,
    )
