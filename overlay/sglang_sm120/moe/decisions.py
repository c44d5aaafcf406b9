"""What was decided in this process, said once in the log and kept for `plan`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from sglang_sm120 import __version__
from sglang_sm120.patching import records
from sglang_sm120.upstream.server_flags import Role

Stage = Literal["resolution", "dispatch"]
logger = logging.getLogger("sglang_sm120")


@dataclass(frozen=True)
class Decision:
    """Which runner a kind of layer got.

    Attributes:
        role: `target` or `draft`.
        runner: the runner, None where SGLang's own choice was left alone.
        changed_by: name of the patch that decided, None for SGLang.
        reason: one line.
    """

    role: Role
    runner: str | None
    changed_by: str | None
    reason: str


DECISIONS: dict[tuple[Stage, Role], Decision] = {}
_SAID: set[object] = set()


def decide(stage: Stage, decision: Decision) -> None:
    """Keep a decision; `stage` is `resolution` (launcher) or `dispatch` (scheduler)."""
    DECISIONS[stage, decision.role] = decision


def decision(role: Role) -> Decision | None:
    """The latest word on a role: dispatch if it happened in this process, else resolution."""
    return DECISIONS.get(("dispatch", role)) or DECISIONS.get(("resolution", role))


def forget_dispatch() -> None:
    """Drop what was decided for layers so far, so that the next layer's decision is its own."""
    for key in [key for key in DECISIONS if key[0] == "dispatch"]:
        del DECISIONS[key]


def once(key: object, message: str) -> None:
    """Log a line at INFO the first time that `key` is seen in this process, on the first rank of a group."""
    if key in _SAID:
        return
    _SAID.add(key)
    if _is_first_rank():
        logger.info(message)


def summary() -> str:
    """Version and patches in one line."""
    states = ", ".join(f"{s.name} {s.status} ({s.reason})" for s in records.STATES.values())
    return f"sglang-sm120 {__version__}: {states}"


def _is_first_rank() -> bool:
    import torch.distributed as distributed

    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
