"""What of each routed expert a rank holds, under SGLang's tensor, expert and MoE data parallelism."""

from __future__ import annotations


def expert_ranks(tp: int, ep: int = 1, moe_dp: int = 1) -> int:
    """Ranks that share each routed expert.

    Args:
        tp: `--tp`, all ranks of a pipeline stage.
        ep: `--ep-size`, groups of ranks that hold different experts.
        moe_dp: `--moe-dp-size`, groups of ranks that hold copies of the experts.
    """
    return max(1, tp // ep // moe_dp)


def expert_width(intermediate: int, tp: int, ep: int = 1, moe_dp: int = 1) -> int:
    """Columns of a routed expert's intermediate size that a rank holds; sizes as for `expert_ranks`."""
    return intermediate // expert_ranks(tp, ep, moe_dp)
