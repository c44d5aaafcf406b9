"""Values of SGLang's flags with which no launch can work, told by the flag before SGLang fails somewhere inside.

Asked of the values that SGLang has resolved, so that what it gives a meaning stays: a chunk of prefill of 0 or less is
none, no draft step is plain decoding, and a port of 0 is any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_sm120.checkpoint.shares import expert_ranks, uneven

# SGLang's name of a field -> its value; None if it is unset, or unknown to this SGLang.
Flags = Callable[[str], Any]

# flag, field, least, most; a name instead of a number is the field that sets the bound, None is no bound
_NUMBERS: tuple[tuple[str, str, int | str, int | None], ...] = (
    ("--tp", "tp_size", 1, None),
    ("--pp-size", "pp_size", 1, None),
    ("--ep-size", "ep_size", 1, None),
    ("--dp-size", "dp_size", 1, None),
    ("--moe-dp-size", "moe_dp_size", 1, None),
    ("--nnodes", "nnodes", 1, None),
    ("--max-total-tokens", "max_total_tokens", "page_size", None),  # SGLang rounds it down to whole pages
    ("--context-length", "context_length", 1, None),
    ("--speculative-num-steps", "speculative_num_steps", 0, None),
    ("--port", "port", 0, 65535),
    ("--nccl-port", "nccl_port", 0, 65535),
    ("--disaggregation-bootstrap-port", "disaggregation_bootstrap_port", 0, 65535),
)


class ImpossibleFlagsError(ValueError):
    """No launch can have these values; `faults` has a line for each, naming flag, value and what is expected."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def require(flags: Flags) -> None:
    """Refuse values that are out of range, and sizes that do not divide each other.

    Raises:
        ImpossibleFlagsError: with a line for each fault.
    """
    faults = _out_of_range(flags) or _uneven(flags)
    if faults:
        raise ImpossibleFlagsError(faults)


def require_shares(flags: Flags, experts: int, intermediate: int, draft_experts: int | None = None) -> None:
    """Refuse sizes by which the routed experts cannot be shared out; call `require` first.

    Args:
        experts, intermediate: number and width of the target's routed experts, whole.
        draft_experts: number of the draft's; None without a draft.

    Raises:
        ImpossibleFlagsError: with a line for each fault.
    """
    ep, parts = flags("ep_size") or 1, _expert_parts(flags)
    flag = "--tp" if parts == 1 else "--tp / --ep-size" if parts == ep else "--tp / --ep-size / --moe-dp-size"
    ranks = expert_ranks(flags("tp_size"), ep, flags("moe_dp_size") or 1)
    faults = [
        *uneven(experts, ep, flags("ep_num_redundant_experts") or 0, draft_experts),
        *_divides(flag, ranks, "moe_intermediate_size in config.json", intermediate),
    ]
    if faults:
        raise ImpossibleFlagsError(faults)


def require_attention_shares(flags: Flags, heads: int, head_dim: int, groups: int | None) -> list[str]:
    """Refuse sizes by which attention cannot be shared out; call `require` first.

    Args:
        heads, head_dim, groups: `num_attention_heads`, `head_dim` and `o_groups` of the configuration.

    Returns:
        What SGLang, which counts columns, does not refuse itself, but fails on in the first forward.

    Raises:
        ImpossibleFlagsError: with a line for each fault.
    """
    ranks = (flags("tp_size") or 1) // _attention_copies(flags) // (flags("attn_cp_size") or 1)
    flag = "--tp" if ranks == flags("tp_size") else "--tp / --dp-size or --attn-dp-size / --attn-cp-size"
    uneven = _divides(flag, ranks, "num_attention_heads in config.json", heads)
    if heads * head_dim % ranks:
        raise ImpossibleFlagsError(uneven)
    return uneven + (_divides(flag, ranks, "o_groups in config.json", groups) if groups else [])


def _attention_copies(flags: Flags) -> int:
    """Groups of ranks that attend to different requests."""
    return max(flags("attn_dp_size") or 1, (flags("dp_size") or 1) if flags("enable_dp_attention") else 1)


def _out_of_range(flags: Flags) -> list[str]:
    faults = []
    for flag, field, lower, most in _NUMBERS:
        value, least = flags(field), (flags(lower) or 1) if isinstance(lower, str) else lower
        if value is not None and not (least <= value and (most is None or value <= most)):
            faults.append(f"{flag} is {value}; expected {least} {'or more' if most is None else f'to {most}'}")
    rank, nodes, part = flags("node_rank"), flags("nnodes") or 1, flags("mem_fraction_static")
    if rank is not None and nodes > 0 and not 0 <= rank < nodes:
        faults.append(f"--node-rank is {rank}; expected 0 to {nodes - 1}, as --nnodes is {nodes}")
    if part is not None and not 0 < part <= 1:
        faults.append(f"--mem-fraction-static is {part}; expected a part of a GPU's memory, above 0 and at most 1")
    return faults + _bad_address(flags("dist_init_addr"))


def _bad_address(address: str | None) -> list[str]:
    """Where the ranks of several hosts meet; SGLang takes no address without a port."""
    if address is None:
        return []
    _, _, port = address.rpartition(":")
    if address.removesuffix(f":{port}") and port.isascii() and port.isdigit() and 0 < int(port) <= 65535:
        return []
    return [f"--dist-init-addr is {address!r}; expected ADDRESS:PORT with a port of 1 to 65535"]


def _uneven(flags: Flags) -> list[str]:
    tp, pp = flags("tp_size") or 1, flags("pp_size") or 1
    parts = _expert_parts(flags)
    attention = _attention_copies(flags)
    # A server that joins another one's ranks has hosts of its own.
    nodes = 1 if flags("ep_join_mode") == "scale" else flags("nnodes") or 1
    return [
        *_divides("--ep-size" if parts == flags("ep_size") else "--ep-size x --moe-dp-size", parts, "--tp", tp),
        *_divides("--dp-size or --attn-dp-size", attention, "--tp", tp),
        *_divides("--nnodes", nodes, "--tp x --pp-size", tp * pp),
    ]


def _expert_parts(flags: Flags) -> int:
    """Groups of ranks that hold different routed experts, or other tokens' copies of them."""
    return (flags("ep_size") or 1) * (flags("moe_dp_size") or 1)


def _divides(flag: str, size: int, what: str, whole: int) -> list[str]:
    return [] if whole % size == 0 else [f"{flag} is {size}; expected a divisor of {what}, which is {whole}"]
