"""Whether all ranks of a model run the same overlay, asked before layers are made and weights are read.

Ranks on several hosts have environments of their own. One without the overlay, or with other settings, builds other
layers, and what is then summed over ranks is wrong or never comes. Each rank leaves a line in the store through which
torch's process group was made, and reads those of its tensor-parallel group. No collective is involved: a rank that
never answers holds nobody up for longer than `WAIT_S`, and those that do not ask notice nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from sglang_sm120 import __version__
from sglang_sm120.patching import records
from sglang_sm120.settings import ACTIVATION, AUTO, BATCH_INVARIANT, DRAFT_MOE, OFF, TARGET_MOE
from sglang_sm120.upstream import releases, server_flags

logger = logging.getLogger("sglang_sm120")
WAIT_S = 300.0  # ranks part here by what importing the model's code takes; SGLang gives them 480 s to load weights
GRACE_S = 5.0  # for the others to have read, before a rank that leaves takes the store with it
PATIENCE_S = 15.0  # until a line in the log says who is waited for
_POLL_S = 0.05
_SETTINGS = (ACTIVATION, BATCH_INVARIANT, DRAFT_MOE, TARGET_MOE)  # what changes a rank's layers
# Flags that each host resolves by its own table of runners, by what a message calls them.
_RUNNERS = {"target": "moe_runner_backend", "draft": "speculative_moe_runner_backend"}
_asked = False


def facts() -> dict[str, str]:
    """What must be the same on every rank, by the names that a message gives it."""
    found = {"sglang-sm120": __version__, "SGLang": releases.base(str(releases.installed()))}
    found |= {v.name: os.environ.get(v.name, "").strip() or v.default for v in _SETTINGS}
    return found | {f"patch {state.name}": str(state.status) for state in records.STATES.values()}


def runners() -> dict[str, str]:
    """The MoE runners that this rank's flags were resolved to, which must be the same on every rank too."""
    return {f"the {role}'s MoE runner": str(server_flags.published(field)) for role, field in _RUNNERS.items()}


def require() -> None:
    """End this rank's launch if one of its group runs something else or does not say what. Asks once in a process.

    Raises:
        SystemExit: the message names the rank, what differs, and what to do.
    """
    global _asked
    import torch.distributed as dist
    from sglang.srt.distributed import get_tp_group, model_parallel_is_initialized

    if _asked or not model_parallel_is_initialized():
        return
    _asked = True
    rank = dist.get_rank()
    others = [other for other in get_tp_group().ranks if other != rank]
    if not others:
        return
    store = dist.distributed_c10d._get_default_store()
    try:
        problem = compare(store, rank, others, facts() | runners())
    except dist.DistError as error:  # the store was in a process that has ended
        problem = f"rank {rank} cannot ask the others which overlay they run: {' '.join(str(error).split())}"
    if problem is not None:
        with contextlib.suppress(dist.DistError):  # gone already
            _wait(store, others, GRACE_S, "read")  # the store ends with the process that made it; let the others read
        raise SystemExit(f"sglang-sm120: {problem}")


def compare(store: Any, rank: int, others: Sequence[int], mine: dict[str, str]) -> str | None:
    """How another rank differs; None if all are the same.

    Args:
        store: torch's key-value store of all processes.
        rank: of this process.
        others: ranks that must agree with it.
        mine: `facts` and `runners`.
    """
    store.set(_key(rank), json.dumps(mine))
    silent = _wait(store, others, WAIT_S)
    problem = _difference(store, rank, [o for o in others if o not in silent], mine) or _silence(silent)
    store.set(_key(rank, "read"), "")
    return problem


def _difference(store: Any, rank: int, others: Sequence[int], mine: dict[str, str]) -> str | None:
    for other in others:
        theirs = json.loads(store.get(_key(other)))
        for name in sorted(mine.keys() | theirs.keys()):
            here, there = mine.get(name, "unknown"), theirs.get(name, "unknown")
            if here != there:
                of_table = f": flags, and the table of tune or {AUTO.name}=fixed"
                more = of_table if name.endswith("MoE runner") else ""
                said = f"{name} is {here} on rank {rank} and {there} on rank {other}; make their hosts the same"
                return said + more
    return None


def _silence(silent: Sequence[int]) -> str | None:
    if not silent:
        return None
    return (
        f"rank {', '.join(map(str, silent))} did not say within {WAIT_S:.0f} s which overlay it runs: it may have "
        f"ended (see its log), or its host has none; there install sglang-sm120 {__version__} and unset SGLANG_PLUGINS "
        f"and what begins with {OFF.name}, or run stock SGLang with {OFF.name}=0 on every host"
    )


def _wait(store: Any, ranks: Sequence[int], seconds: float, what: str = "line") -> list[int]:
    """The ranks that have not left what they are to leave when the time is up."""
    begun, said = time.monotonic(), False
    while True:
        ranks = [rank for rank in ranks if not store.check([_key(rank, what)])]
        waited = time.monotonic() - begun
        if not ranks or waited >= seconds:
            return ranks
        if waited >= PATIENCE_S and not said:
            said = True
            logger.warning(f"sglang-sm120: waiting for rank {', '.join(map(str, ranks))} to say which overlay it runs")
        time.sleep(_POLL_S)


def _key(rank: int, what: str = "line") -> str:
    return f"sglang_sm120/{rank}/{what}"
