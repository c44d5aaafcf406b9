"""Which checkpoint tensors reached a MoE layer's parameters, so that a missing one fails the load by name.

SGLang's DeepSeek loader skips a tensor whose name it does not know, and it calls a parameter's `weight_loader` for
every expert of the checkpoint, those of other ranks included. The ledger stands between the two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import torch

WEIGHT, SCALE = "weight", "weight_scale_inv"
SHARDS = ("w1", "w2", "w3")  # gate, down, up


class ShardLedger:
    """Records (expert, shard, weight or scale) of each delivery, from any thread.

    Args:
        before: called before a delivery is written, with the lock held; the layer's way to get back to the
            checkpoint's layout when a runtime update begins.
    """

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._lock = threading.Lock()
        self._delivered: set[tuple[int, str, str]] = set()

    def wrap(self, loader: Callable[..., None]) -> Callable[..., None]:
        """A `weight_loader` that records and then does what the given one does."""

        def load(param, loaded_weight: torch.Tensor, weight_name: str, shard_id: str, expert_id: int) -> None:
            kind = SCALE if "scale" in weight_name else WEIGHT
            with self._lock:
                self._before()
                self._delivered.add((expert_id, shard_id, kind))
            loader(param, loaded_weight, weight_name, shard_id=shard_id, expert_id=expert_id)

        return load

    @property
    def is_empty(self) -> bool:
        """True when no tensor came through the loader (dummy weights, sharded state, a remote instance)."""
        return not self._delivered

    def missing(self, experts: Iterable[int]) -> list[str]:
        """Names of the tensors that these experts of the checkpoint lack, as in `experts.3.w2.weight_scale_inv`."""
        return [
            f"experts.{expert}.{shard}.{kind}"
            for expert in experts
            for shard in SHARDS
            for kind in (WEIGHT, SCALE)
            if (expert, shard, kind) not in self._delivered
        ]
