"""The life of a layer's expert weights, whatever their format: filled, prepared, run, restored, written again.

Parameters hold the checkpoint's layout from their creation until `prepare`, and again from `restore` on; in between
they hold the kernel's. SGLang's loader may write at any time: the first tensor that arrives restores. The addresses
never change, so that captured CUDA graphs run on what was written last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch

from sglang_sm120.moe import decisions
from sglang_sm120.moe.layout_state import Layout, LayoutState
from sglang_sm120.moe.ledger import ShardLedger
from sglang_sm120.settings import RUNNER
from sglang_sm120.upstream import built_layers, server_flags
from sglang_sm120.upstream.protocols import MoeLayer


class ExpertFormat(Protocol):
    """What a layer and its life cycle ask of a format.

    Attributes:
        name: for messages.
        kinds: what the checkpoint has of each shard of an expert (`ledger.KINDS`).
        parameters: names of the layer's parameters that the kernel reads.
        wide_are, narrow_are: what weights of the general and of the fast variant of the kernel are, in words.
    """

    name: str
    kinds: tuple[str, ...]
    parameters: tuple[str, ...]
    wide_are: str
    narrow_are: str

    def add_parameters(
        self, layer: torch.nn.Module, name: str, shape: tuple[int, int, int], attributes: dict[str, Any]
    ) -> None:
        """Make the parameters of w13 or w2, of experts, rows and columns, with SGLang's attributes."""

    def fill_dummy(self, layer: torch.nn.Module) -> None:
        """Give parameters in the checkpoint's layout values that keep activations small."""

    def unfilled(self, layer: torch.nn.Module) -> str | None:
        """The first parameter and local expert with values that no checkpoint has; None where all were loaded."""

    def is_wide(self, layer: torch.nn.Module) -> bool:
        """Whether the weights need the general variant of the kernel; ValueError where they are unfit for any."""

    def prepare(self, layer: torch.nn.Module, wide: bool) -> Any:
        """Repack in place, for the variant given; what the kernel takes."""

    def restore(self, weights: Any) -> None:
        """The inverse of `prepare`, in place."""

    def says(self, prefix: str, wide: bool, unknown: bool) -> tuple[object, str] | None:
        """A line for the log about the variant chosen, and the key under which it is said once."""


class ExpertWeights:
    """The expert weights of one layer.

    Args:
        prefix: module name of the layer, for messages.
        form: the format's part.
        layer: holds the parameters; they must be registered before the first call.

    Attributes:
        form: the format's part.
        ledger: what SGLang's loader delivered.
        prepared: what the kernel takes; None unless the parameters are in the kernel's layout.
    """

    def __init__(self, prefix: str, form: ExpertFormat, layer: torch.nn.Module) -> None:
        self.prefix = prefix
        self.prepared: Any = None
        self.form = form
        self._layer = layer
        self._fused = cast(MoeLayer, layer)
        self.ledger = ShardLedger(
            self.restore, form.kinds, prefix, lambda expert: built_layers.is_shared_expert(self._fused, expert)
        )
        # A module's attribute lookup would cost a forward more than the check.
        self._parameters: dict[str, Any] = layer._parameters
        self._state = LayoutState()
        self._addresses: tuple[tuple[str, int], ...] = ()
        self._was_prepared = self._began_as_dummy = self._is_wide = False
        self._frozen: bool | None = None  # the variant that CUDA graphs may have been captured with
        layer.register_state_dict_pre_hook(self._refuse_state_dict)

    @property
    def layout(self) -> Layout:
        """What the bytes of the parameters mean now."""
        return self._state.layout

    def prepare(self) -> bool:
        """Check what was written and repack it in place; False where there is nothing to do.

        Everything that can be refused is refused before a byte moves. There is nothing to do where the parameters are
        in the kernel's layout already, and where memory that was released came back with bytes that are no weights:
        more requests of the update follow, and a forward before the last one is refused.

        Raises:
            ValueError: a tensor never arrived, or CUDA graphs were captured for other scales.
        """
        if self.layout is Layout.PREPARED:
            return False
        if self.layout is Layout.BROKEN:
            self._require_all_rewritten()
        self._fill_or_check()
        try:
            needs_wide = self.form.is_wide(self._layer)
        except ValueError as error:
            if self._came_back():
                return False
            raise ValueError(f"{self.prefix}: {error} (each rank counts its experts from 0)") from error
        wide = self._variant(needs_wide)
        with self._repacking(Layout.PREPARED):
            self.prepared = self.form.prepare(self._layer, wide)
        self._is_wide = wide
        self._addresses = tuple((name, self._parameters[name].data_ptr()) for name in self.form.parameters)
        self._was_prepared = True
        return True

    def restore(self) -> None:
        """Back to the checkpoint's layout, in place, because tensors are about to be written; twice is as good as once.

        Raises:
            RuntimeError: the parameters are not the memory that was prepared.
        """
        if self.layout is not Layout.PREPARED:
            return
        weights = self.present()
        self.prepared = None
        with self._repacking(Layout.CHECKPOINT):
            self.form.restore(weights)

    def present(self) -> Any:
        """What was prepared, as long as it is the layer's memory; the price of a forward is a comparison for each.

        Raises:
            RuntimeError: the parameters are not in the kernel's layout, or were moved since.
        """
        if self.prepared is None:
            raise RuntimeError(f"{self.prefix}: {self._why_not_prepared()}")
        held = self._parameters
        for name, address in self._addresses:
            if held[name].data_ptr() != address:
                raise RuntimeError(
                    f"{self.prefix}: {name} was moved after {RUNNER} had prepared it; leave out CPU offloading and "
                    "weight replication for this layer, or give it another MoE runner"
                )
        return self.prepared

    def note_forward(self) -> None:
        """A forward begins: from now on CUDA graphs may hold the variant of the kernel."""
        if server_flags.captures_graphs():
            self._frozen = self._is_wide

    @contextmanager
    def _repacking(self, to: Layout) -> Iterator[None]:
        """Every byte moves inside; where that fails, what was delivered is lost."""
        try:
            with self._state.changing(to):
                yield
        finally:
            if self.layout is Layout.BROKEN:
                self.ledger.forget()

    def _why_not_prepared(self) -> str:
        if self.layout is Layout.BROKEN:
            return self._broken()
        return (
            "used before process_weights_after_loading; a weight update of this layer has begun and not ended, or was "
            "refused"
        )

    def _broken(self) -> str:
        return (
            f"the expert weights are in no known layout, because repacking them ended in {self._state.cause}; load "
            "the whole checkpoint again (update_weights_from_disk), or restart the server"
        )

    def _require_all_rewritten(self) -> None:
        missing = self.ledger.missing(built_layers.checkpoint_experts(self._fused))
        if missing:
            raise ValueError(f"{self.prefix}: {self._broken()}. Not loaded since: {_some(missing)}")
        self._state.rewritten()

    def _fill_or_check(self) -> None:
        if not self._was_prepared and self.ledger.is_empty and server_flags.loads_dummy_weights(self.prefix):
            self.form.fill_dummy(self._layer)
            self._began_as_dummy = True
            return
        # Dummy values stand in for what an update leaves out.
        if not self.ledger.is_empty and not self._began_as_dummy:
            missing = self.ledger.missing(built_layers.checkpoint_experts(self._fused))
            if missing:
                raise ValueError(
                    f"{self.prefix}: the checkpoint did not deliver {_some(missing)}; is it complete, and are its "
                    f"experts {self.form.name}?"
                )
        unfilled = self.form.unfilled(self._layer)
        if unfilled is not None and not self._came_back():
            raise ValueError(f"{self.prefix}: {unfilled} has values that were never loaded or are NaN")

    def _came_back(self) -> bool:
        """Whether the bytes may be those of memory that was released, which are any."""
        return self._was_prepared and server_flags.releases_weights()

    def _variant(self, wide: bool) -> bool:
        """Whether the general variant of the kernel is to run, which is right for all weights of the format.

        CUDA graphs keep the variant that they were captured with. So the general one is taken where graphs are captured
        before the weights are known.

        Args:
            wide: the weights need it.
        """
        if wide and self._frozen is False:
            raise ValueError(
                f"{self.prefix}: the new weights {self.form.wide_are}, and CUDA graphs were captured with the kernel "
                f"for weights {self.form.narrow_are}; the old weights are gone and the new ones were not prepared. "
                f"Load weights {self.form.narrow_are} (the former checkpoint's are), or restart the server on the new "
                "checkpoint, or with --load-format dummy or --disable-cuda-graph to take any weights"
            )
        unknown = (self._began_as_dummy and not self._was_prepared) or server_flags.experts_may_change()
        said = self.form.says(self.prefix, wide, unknown)
        if said is not None and not self._frozen:
            decisions.once(*said)
        return wide or unknown or bool(self._frozen)

    def _refuse_state_dict(self, *_hook: Any) -> None:
        """save_sharded_model and save_remote_model would write the kernel's layout under the checkpoint's names."""
        if self.layout is not Layout.CHECKPOINT:
            raise RuntimeError(
                f"{self.prefix}: the expert weights are in {self.layout.value}, which no other server can read; "
                f"save_sharded_model and save_remote_model need another MoE runner than {RUNNER}"
            )


def _some(missing: list[str]) -> str:
    """The first three, and how many there are besides."""
    return ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
