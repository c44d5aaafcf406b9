"""Memory that a checkpoint's weights take of each GPU, from the safetensors headers.

Routed experts are divided by `tp x pp` exactly, whether tensor or expert parallel: an expert-parallel rank holds
`1/ep` of the experts, each cut by `tp/ep`. Of the rest some tensors are cut and some (latent projections, norms, the
router) are kept whole on every rank, so the rest is given as a range.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sglang_sm120.checkpoint.inspection import tensor_headers

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

    def per_gpu(self, tp: int, pp: int, draft: bool) -> tuple[int, int]:
        """Least and most bytes that a rank holds; the draft is not cut by pp."""
        experts = self.experts / (tp * pp) + (self.draft_experts / tp if draft else 0)
        rest = self.rest / pp + (self.draft_rest if draft else 0)
        return round(experts + rest / tp), round(experts + rest)


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
    weights: Weights, memory_gib: int, tp: int, pp: int, draft: bool, static_fraction: float = 1.0
) -> dict[str, float | bool]:
    """What `plan` shows: GiB of weights on each GPU, and whether they leave anything of what SGLang gives them.

    Args:
        static_fraction: `--mem-fraction-static` as resolved: the share of a GPU for weights and KV cache together.
    """
    least, most = weights.per_gpu(tp, pp, draft)
    return {
        "gpu_memory_gib": memory_gib,
        "static_gib": round(memory_gib * static_fraction, 2),
        "weights_gib_least": round(least / GIB, 2),
        "weights_gib_most": round(most / GIB, 2),
        "fits": least < memory_gib * static_fraction * GIB,
    }
