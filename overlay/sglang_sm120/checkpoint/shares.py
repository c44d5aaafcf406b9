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


def uneven(experts: int, ep: int, redundant: int = 0, draft_experts: int | None = None) -> list[str]:
    """Why the routed experts cannot be dealt out to the ranks, a line each; SGLang asserts it without a text.

    Args:
        experts: of a layer of the target, as the checkpoint has them.
        ep: `--ep-size`.
        redundant: `--ep-num-redundant-experts`, copies that the target's layers keep beside them.
        draft_experts: of the draft's layers, which keep no copies; None without a draft.
    """
    faults = []
    if (experts + redundant) % ep:
        more = f" + --ep-num-redundant-experts, {experts} + {redundant}" if redundant else f", which is {experts}"
        faults.append(f"--ep-size is {ep}; expected a divisor of n_routed_experts in config.json{more}")
    if draft_experts is not None and draft_experts % ep and (redundant or draft_experts != experts):
        faults.append(
            f"--ep-size is {ep}; expected a divisor of the draft's {draft_experts} experts, which has no more"
        )
    return faults
