"""SGLang's MoE method for MXFP4 experts on SM120: parameters, preparation, and one call per forward.

The life of a layer: `create_weights` makes the parameters that SGLang's loader fills, `process_weights_after_loading`
checks that all were filled and repacks them in place, `apply` runs the kernel. A runtime weight update starts over: the
first tensor that arrives turns the bytes back into the checkpoint's layout.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from sglang.srt.layers.quantization.base_config import FusedMoEMethodBase

from sglang_sm120.kernels.sm120 import fp4_moe
from sglang_sm120.moe import decisions, metrics
from sglang_sm120.moe.ledger import ShardLedger
from sglang_sm120.settings import RUNNER
from sglang_sm120.upstream import built_layers, server_flags

GROUP = 32  # values that share an e8m0 scale (OCP Microscaling Formats v1.0)
UNFILLED = 0xFF  # e8m0 NaN: no checkpoint has it, so a scale that still is was never loaded
DUMMY_SCALE = 0x73  # 2^-12: with random codes the layer keeps activations small
_LARGEST_INT32 = 2**31 - 1


class Sm120Mxfp4MoEMethod(FusedMoEMethodBase):
    """Triton MXFP4 experts (`sm120_triton`).

    Args:
        prefix: module name of the layer, for messages.
        activation: `bf16` (W4A16) or `mxfp8` (W4A8).
    """

    # The kernel multiplies by routed_scaling_factor itself; top-k must not.
    fuse_routed_scaling_factor_in_topk = False
    load_up_proj_weight_first = False

    def __init__(self, prefix: str, activation: str = "bf16") -> None:
        self.prefix = prefix
        self.activation = activation
        self.weights: fp4_moe.PreparedWeights | None = None
        self.wide_scales: bool | None = None
        self.role = server_flags.role(prefix)
        self.has_run = False

    def create_weights(
        self,
        layer: torch.nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register the four parameters under the names and in the layout of the checkpoint.

        Args:
            num_experts: experts that this rank holds, E.
            hidden_size: H, a multiple of 32.
            intermediate_size_per_partition: I of this rank, a multiple of 32.
            params_dtype: the model's dtype; bfloat16.
            extra_weight_attrs: `weight_loader` and what else SGLang attaches.

        Raises:
            ValueError: a width is not a multiple of 32, or the model is not bfloat16.
        """
        for name, size in (("hidden_size", hidden_size), ("intermediate size", intermediate_size_per_partition)):
            if size % GROUP:
                raise ValueError(f"{self.prefix}: {name} of a rank is {size}; {RUNNER} needs a multiple of {GROUP}")
        if params_dtype != torch.bfloat16:
            raise ValueError(f"{self.prefix}: the model runs in {params_dtype}; {RUNNER} needs --dtype bfloat16")
        self.ledger = ShardLedger(before=lambda: self._restore(layer))
        attributes = dict(extra_weight_attrs, weight_loader=self.ledger.wrap(extra_weight_attrs["weight_loader"]))
        rows13, inter = 2 * intermediate_size_per_partition, intermediate_size_per_partition
        for name, rows, columns in (("w13", rows13, hidden_size), ("w2", hidden_size, inter)):
            codes = torch.empty(num_experts, rows, columns // 2, dtype=torch.int8)
            scales = torch.full((num_experts, rows, columns // GROUP), UNFILLED, dtype=torch.uint8)
            _register(layer, f"{name}_weight", codes, attributes)
            _register(layer, f"{name}_weight_scale_inv", scales.view(torch.float8_e8m0fnu), attributes | _BLOCK_SCALE)

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
            ValueError: a tensor of the checkpoint never arrived; the message names it.
        """
        if self.weights is not None:
            return
        self._check_filled(layer)
        weights = fp4_moe.prepare_mxfp4(
            layer.w13_weight.data,
            _bytes(layer.w13_weight_scale_inv),
            layer.w2_weight.data,
            _bytes(layer.w2_weight_scale_inv),
        )
        self.weights = self._with_first_range(weights)
        decisions.once(("prepared", self.prefix), f"Prepared MXFP4 experts for {RUNNER} (layer: {self.prefix})")
        if _on_gpu(self.weights):
            self._warm_up(self.weights)

    def apply(self, layer: torch.nn.Module, dispatch_output: Any) -> Any:
        """Run the experts of this rank.

        Args:
            dispatch_output: SGLang's StandardDispatchOutput: bf16 hidden states [T, H] (left as they are), top-k ids
                and weights [T, K], -1 for slots that are not here.

        Returns:
            StandardCombineInput with bf16 [T, H], to be summed over ranks by the caller.
        """
        weights = self._present_weights(layer)
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
        )
        return built_layers.combine_input(out)

    def _announce(self) -> None:
        self.has_run = True
        decisions.once(
            ("apply", self.role),
            f"{RUNNER} runs the {self.role}'s experts ({self.prefix}, {self.activation} activations)",
        )

    def _warm_up(self, weights: fp4_moe.PreparedWeights) -> None:
        """Compile before the server says that it is ready; layers of one shape share what the first one compiled."""
        done = fp4_moe.warm_up(
            weights,
            self.config.top_k,
            server_flags.most_tokens_of_a_forward(),
            activation=self.activation,
            swiglu_limit=self.config.swiglu_limit,
        )
        decisions.once(
            ("warm-up", done), f"{RUNNER} compiled {done.kernels} kernels in {done.seconds:.1f} s (for {self.prefix})"
        )

    def _scaling_factor(self, layer: torch.nn.Module) -> float:
        """1 where top-k has multiplied already."""
        if getattr(layer, "should_fuse_routed_scaling_factor_in_topk", False):
            return 1.0
        return self.config.routed_scaling_factor or 1.0

    def _restore(self, layer: torch.nn.Module) -> None:
        """Back to the checkpoint's layout, in place, because new tensors are about to be written."""
        if self.weights is not None:
            fp4_moe.restore(self._present_weights(layer))
            self.weights = None

    def _present_weights(self, layer: torch.nn.Module) -> fp4_moe.PreparedWeights:
        """What was prepared, as long as it still is the layer's memory.

        CPU offloading and schemes that bind expert weights anew exchange a parameter's storage after preparation.
        """
        if self.weights is None:
            raise RuntimeError(f"{self.prefix}: used before process_weights_after_loading")
        if self.weights.w13.data_ptr() != layer.w13_weight.data_ptr():
            raise RuntimeError(
                f"{self.prefix}: the expert weights were moved after {RUNNER} had prepared them; leave out CPU "
                "offloading and weight replication for this layer, or give it another MoE runner"
            )
        return self.weights

    def _with_first_range(self, weights: fp4_moe.PreparedWeights) -> fp4_moe.PreparedWeights:
        """Keep the kernel variant of the first load, because captured CUDA graphs do.

        The variant for scales at the ends of the range is right for all scales, the other one is not.
        """
        if self.wide_scales is None:
            self.wide_scales = weights.wide_scales
        if weights.wide_scales and not self.wide_scales:
            raise ValueError(
                f"{self.prefix}: the updated weights have scales outside the range of the first ones, for which CUDA "
                "graphs were captured; restart the server with the new checkpoint"
            )
        return dataclasses.replace(weights, wide_scales=self.wide_scales)

    def _check_filled(self, layer: torch.nn.Module) -> None:
        if server_flags.loads_dummy_weights():
            for name in ("w13_weight_scale_inv", "w2_weight_scale_inv"):
                _bytes(getattr(layer, name)).fill_(DUMMY_SCALE)
            return
        if not self.ledger.is_empty:
            missing = self.ledger.missing(built_layers.checkpoint_experts(layer))
            if missing:
                more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
                raise ValueError(
                    f"{self.prefix}: the checkpoint did not deliver {', '.join(missing[:3])}{more}; "
                    "is it complete, and are its experts MXFP4?"
                )
        for name in ("w13_weight_scale_inv", "w2_weight_scale_inv"):
            unfilled = [e for e, scale in enumerate(_bytes(getattr(layer, name))) if bool((scale == UNFILLED).any())]
            if unfilled:
                raise ValueError(
                    f"{self.prefix}: {name} of local expert {unfilled[0]} has values that were never loaded or are NaN"
                )


def _int32(ids: torch.Tensor) -> torch.Tensor:
    """Expert ids of the type that kernels were compiled for before serving; relocated experts may have int64.

    What no int32 holds is no expert, and its lower half must not become one.
    """
    return ids if ids.dtype == torch.int32 else ids.clamp(-1, _LARGEST_INT32).to(torch.int32)


def _on_gpu(weights: fp4_moe.PreparedWeights) -> bool:
    return weights.w13.is_cuda


_BLOCK_SCALE = {"quant_method": "block", "format_ue8m0": False}


def _register(layer: torch.nn.Module, name: str, data: torch.Tensor, attributes: dict[str, Any]) -> None:
    parameter = torch.nn.Parameter(data, requires_grad=False)
    layer.register_parameter(name, parameter)
    for key, value in attributes.items():
        setattr(parameter, key, value)


def _bytes(scale: torch.Tensor) -> torch.Tensor:
    return scale.data.view(torch.uint8)
