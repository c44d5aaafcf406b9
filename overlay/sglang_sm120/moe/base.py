"""What the MoE methods of `sm120_triton` share: SGLang's interface to a layer, whatever the format of its experts.

The life of a layer: `create_weights` makes the parameters that SGLang's loader fills, `process_weights_after_loading`
checks that all were filled and repacks them in place, `apply` runs the kernel. A runtime weight update starts over:
`restore_weights_before_loading`, or the first tensor that arrives, turns the bytes back into the checkpoint's layout.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.quantization.base_config import FusedMoEMethodBase

from sglang_sm120.kernels.sm120 import fp4_moe
from sglang_sm120.moe import decisions, metrics
from sglang_sm120.moe.life_cycle import ExpertFormat, ExpertWeights
from sglang_sm120.settings import RUNNER
from sglang_sm120.upstream import built_layers, server_flags

MULTIPLE = 32  # of a rank's widths
_LARGEST_INT32 = 2**31 - 1


class Sm120MoEMethod(FusedMoEMethodBase):
    """Experts that the Triton kernel runs; a subclass names the format and makes its parameters.

    Args:
        prefix: module name of the layer, for messages.
        activation: `bf16` (W4A16) or `mxfp8` (W4A8).
        batch_invariant: a token's result has the same bits whatever else is in the batch.
    """

    # The kernel multiplies by routed_scaling_factor itself; top-k must not.
    fuse_routed_scaling_factor_in_topk = False
    load_up_proj_weight_first = False

    def __init__(self, prefix: str, activation: str = "bf16", *, batch_invariant: bool = False) -> None:
        self.prefix = prefix
        self.activation = activation
        self.batch_invariant = batch_invariant
        self.role = server_flags.role(prefix)
        self.has_run = False

    def check_layer(self, hidden: int, inter: int, dtype: torch.dtype) -> None:
        """Raise ValueError unless the kernel takes a rank's widths and the model's type."""
        for name, size in (("hidden_size", hidden), ("intermediate size", inter)):
            if size % MULTIPLE:
                raise ValueError(f"{self.prefix}: {name} of a rank is {size}; {RUNNER} needs a multiple of {MULTIPLE}")
        if dtype != torch.bfloat16:
            raise ValueError(f"{self.prefix}: the model runs in {dtype}; {RUNNER} needs --dtype bfloat16")

    def adopt(self, layer: torch.nn.Module, form: ExpertFormat) -> None:
        """Take charge of the parameters that the layer has: their loaders report to the ledger from now on."""
        self.experts = ExpertWeights(self.prefix, form, layer)
        for name in form.parameters:
            parameter = getattr(layer, name)
            parameter.weight_loader = self.experts.ledger.wrap(parameter.weight_loader, name)

    @property
    def weights(self) -> Any:
        """What the kernel takes; None while the parameters are in the checkpoint's layout."""
        return self.experts.prepared

    def create_moe_runner(self, layer: torch.nn.Module, moe_runner_config: Any) -> None:
        """Keep the layer's configuration.

        Raises:
            ValueError: it asks for something that the kernel does not compute.
        """
        config = moe_runner_config
        wanted = {
            "activation": "silu",
            "is_gated": True,
            "gemm1_alpha": None,
            "gemm1_clamp_limit": None,
            "apply_router_weight_on_input": False,
            "no_combine": False,
        }
        for name, value in wanted.items():
            found = getattr(config, name, value)
            if found != value:
                raise ValueError(f"{self.prefix}: {name} is {found!r}; {RUNNER} computes {value!r} only")
        self.config = config

    def get_moe_runner_backend(self, layer: torch.nn.Module) -> None:
        """None: a direct kernel that takes standard top-k with local expert ids."""
        return None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Check that every parameter was filled, repack in place, and on a GPU compile what a forward can need.

        The second call in a row does nothing.

        Raises:
            ValueError: a tensor of the checkpoint never arrived, or CUDA graphs were captured for other scales; the
                message names it, and no byte has moved.
        """
        if self.experts.prepare():
            name = self.experts.form.name
            decisions.once(("prepared", self.prefix), f"Prepared {name} experts for {RUNNER} (layer: {self.prefix})")
            if _on_gpu(self.weights):
                self._warm_up(self.weights)

    def restore_weights_before_loading(self, layer: torch.nn.Module) -> None:
        """Back to the checkpoint's layout, in place: SGLang is about to write parameters, with a loader or without.

        Raises:
            RuntimeError: the parameters are not the memory that was prepared.
        """
        self.experts.restore()

    def apply(self, layer: torch.nn.Module, dispatch_output: Any) -> Any:
        """Run the experts of this rank.

        Args:
            dispatch_output: SGLang's StandardDispatchOutput: bf16 hidden states [T, H] (left as they are), top-k ids
                and weights [T, K], -1 for slots that are not here.

        Returns:
            StandardCombineInput with bf16 [T, H], to be summed over ranks by the caller.
        """
        weights = self.experts.present()
        if not self.has_run:
            self._announce()
        metrics.count_dispatch(self.role, RUNNER)
        topk = built_layers.standard_topk(dispatch_output.topk_output)
        hidden = dispatch_output.hidden_states
        out = built_layers.empty_for_all_reduce(hidden)
        fp4_moe.fp4_moe(
            hidden,
            weights,
            _int32(built_layers.local_expert_ids(layer, topk.topk_ids)),
            topk.topk_weights.to(torch.float32),
            swiglu_limit=self.config.swiglu_limit,
            routed_scaling_factor=self._scaling_factor(layer),
            activation=self.activation,
            out=out,
            batch_invariant=self.batch_invariant,
        )
        return built_layers.combine_input(out)

    def _announce(self) -> None:
        self.has_run = True
        self.experts.note_forward()
        kept = ", batch-invariant" if self.batch_invariant else ""
        decisions.once(
            ("apply", self.role),
            f"{RUNNER} runs the {self.role}'s experts ({self.prefix}, {self.activation} activations{kept})",
        )

    def _warm_up(self, weights: fp4_moe.PreparedWeights) -> None:
        """Compile before the server says that it is ready; layers of one shape share what the first one compiled."""
        done = fp4_moe.warm_up(
            weights,
            self.config.top_k,
            server_flags.most_tokens_of_a_forward(),
            activation=self.activation,
            swiglu_limit=self.config.swiglu_limit,
            batch_invariant=self.batch_invariant,
        )
        decisions.once(
            ("warm-up", done), f"{RUNNER} compiled {done.kernels} kernels in {done.seconds:.1f} s (for {self.prefix})"
        )

    def _scaling_factor(self, layer: torch.nn.Module) -> float:
        """1 where top-k has multiplied already."""
        if getattr(layer, "should_fuse_routed_scaling_factor_in_topk", False):
            return 1.0
        return self.config.routed_scaling_factor or 1.0


def _int32(ids: torch.Tensor) -> torch.Tensor:
    """Expert ids of the type that kernels were compiled for before serving; relocated experts may have int64.

    What no int32 holds is no expert, and its lower half must not become one.
    """
    return ids if ids.dtype == torch.int32 else ids.clamp(-1, _LARGEST_INT32).to(torch.int32)


def _on_gpu(weights: fp4_moe.PreparedWeights) -> bool:
    return weights.w13.is_cuda


def register(layer: torch.nn.Module, name: str, data: torch.Tensor, attributes: dict[str, Any]) -> None:
    """A parameter of the layer that SGLang's loader fills as the attributes say."""
    parameter = torch.nn.Parameter(data, requires_grad=False)
    layer.register_parameter(name, parameter)
    for key, value in attributes.items():
        setattr(parameter, key, value)


def byte_view(layer: torch.nn.Module, name: str) -> torch.Tensor:
    """The bytes of a parameter, uint8."""
    parameter: torch.Tensor = getattr(layer, name)
    return parameter.data.view(torch.uint8)
