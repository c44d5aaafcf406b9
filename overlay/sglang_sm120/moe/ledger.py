"""Which checkpoint tensors reached a MoE layer's parameters, so that a missing one fails the load by name.

SGLang's DeepSeek loader skips a tensor whose name it does not know, and it calls a parameter's `weight_loader` for
every expert of the checkpoint, those of other ranks included. The ledger stands between the two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import torch

from sglang_sm120.moe import stored_values

# What a tensor of an expert holds, by the end of its parameter's name. The longer of two that fit is meant.
WEIGHT, SCALE, BLOCK_SCALE, GLOBAL_SCALE, INPUT_SCALE = KINDS = (
    "weight",
    "weight_scale_inv",
    "weight_scale",
    "weight_scale_2",
    "input_scale",
)
SHARDS = ("w1", "w2", "w3")  # gate, down, up


def kind_of(parameter: str) -> str:
    """What the parameter of that name holds: the longest of `KINDS` that the name ends with.

    Raises:
        ValueError: the name ends with none of them.
    """
    fitting = [kind for kind in KINDS if parameter.endswith(kind)]
    if not fitting:
        raise ValueError(f"parameter is {parameter!r}; expected a name that ends with one of {', '.join(KINDS)}")
    return max(fitting, key=len)


class ShardLedger:
    """Records (expert, shard, kind) of each delivery, from any thread.

    Args:
        before: called before a delivery is written, with the lock held; the layer's way to get back to the
            checkpoint's layout when a runtime update begins.
        kinds: what a checkpoint has of each shard.
        prefix: module name of the layer, for messages.
        converts: whether SGLang's loader makes values of the parameter's format out of another one for an expert, as it
            does for shared experts that it fuses; their tensors are not looked at here.
    """

    def __init__(
        self,
        before: Callable[[], None],
        kinds: tuple[str, ...] = (WEIGHT, SCALE),
        prefix: str = "",
        converts: Callable[[int], bool] = lambda _expert: False,
    ) -> None:
        self._before = before
        self._prefix = prefix
        self._converts = converts
        self._kinds = kinds
        self._lock = threading.RLock()  # `before` may forget
        self._delivered: set[tuple[int, str, str]] = set()

    def wrap(self, loader: Callable[..., None], parameter: str) -> Callable[..., None]:
        """A `weight_loader` for the parameter of that name: does what the given one does, and records.

        The wrapped loader raises ValueError, before it writes, for a tensor whose values the parameter cannot hold.
        """
        kind = kind_of(parameter)

        def load(param, loaded_weight: torch.Tensor, weight_name: str, shard_id: str, expert_id: int) -> None:
            if not self._converts(expert_id):
                try:
                    loaded_weight = stored_values.of_type(loaded_weight, param.dtype)
                except ValueError as error:
                    raise ValueError(f"{self._prefix}: experts.{expert_id}.{shard_id}.{kind} {error}") from error
            with self._lock:
                self._before()
            loader(param, loaded_weight, weight_name, shard_id=shard_id, expert_id=expert_id)
            with self._lock:
                self._delivered.add((expert_id, shard_id, kind))

        return load

    def forget(self) -> None:
        """Count from nothing again, because what was delivered is lost."""
        with self._lock:
            self._delivered.clear()

    @property
    def is_empty(self) -> bool:
        """True when no tensor came through the loader (dummy weights, parameters that are written directly)."""
        return not self._delivered

    def missing(self, experts: Iterable[int]) -> list[str]:
        """Names of the tensors that these experts of the checkpoint lack, as in `experts.3.w2.weight_scale_inv`."""
        return [
            f"experts.{expert}.{shard}.{kind}"
            for expert in experts
            for shard in SHARDS
            for kind in self._kinds
            if (expert, shard, kind) not in self._delivered
        ]
