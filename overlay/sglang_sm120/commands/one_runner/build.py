"""SGLang's DeepSeek-V4 model reduced to the experts of one block; building and loading are SGLang's, unchanged."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

from sglang_sm120.commands.plan import one_rank
from sglang_sm120.commands.tune.requests import LayerRequest
from sglang_sm120.moe import known_kernels
from sglang_sm120.upstream import server_flags
from sglang_sm120.upstream.server_flags import Role

PREFIXES: dict[Role, str] = {"draft": "model.decoder.mlp.experts", "target": "model.layers.0.mlp.experts"}
BLOCKS: dict[Role, str] = {"draft": "mtp.0", "target": "layers.0"}  # in the checkpoint


class RefusedError(ValueError):
    """SGLang does not build this layer with this runner; the message is its own."""


def resolve(request: LayerRequest) -> Any:
    """Flags and configuration of the model in the layer's role, as in the scheduler of rank 0."""
    from sglang.srt.server_args import prepare_server_args

    role = request.role
    speculation = server_flags.eagle() if role == "draft" else []
    words = ["--model-path", request.model, "--tp", str(request.tp), "--ep-size", str(request.ep)]
    server_args = prepare_server_args([*words, *speculation, *request.flags])
    server_flags.resolve(server_args)
    one_rank.publish_as_scheduler(server_args)
    return server_flags.model_config(server_args, draft_path=request.model if role == "draft" else None)


def import_sglang() -> None:
    """What takes long, before the first question: SGLang's plugins, flags and models, and no GPU."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    for module in ("server_args", "models.deepseek_v4", "models.deepseek_v4_nextn"):
        importlib.import_module(f"sglang.srt.{module}")


def draft_context(role: Role) -> AbstractContextManager[Any]:
    """The context in which SGLang builds and runs a layer of that role."""
    return one_rank.speculative_context() if role == "draft" else nullcontext()


def alone(device: str) -> AbstractContextManager[Any]:
    """Context for one rank alone: its share of the result, before any sum over ranks."""
    from sglang.srt.distributed import parallel_state
    from sglang.srt.runtime_context import get_parallel

    group = SimpleNamespace(world_size=get_parallel().tp_size)
    if getattr(parallel_state, "_TP", group) is None:  # runners of older releases ask here
        parallel_state._TP = group
    rank = one_rank.simulated_rank() if device == "cpu" else get_parallel().override(tp_group=group)
    context: AbstractContextManager[Any] = rank
    return context


def build(model_config: Any, role: Role = "draft") -> Any:
    """SGLang's NextN model, or its target, reduced to the experts of one block."""
    import torch
    from sglang.srt.models import deepseek_v4, deepseek_v4_nextn

    draft = role == "draft"
    base = deepseek_v4_nextn.DeepseekV4ForCausalLMNextN if draft else deepseek_v4.DeepseekV4ForCausalLM

    class Experts(base):  # type: ignore[misc, valid-type]
        def __init__(self, config: Any, quant_config: Any) -> None:
            torch.nn.Module.__init__(self)
            self.config, self.quant_config = config, quant_config
            self.num_fused_shared_experts, self.wo_a_fp8 = 0, True
            self.pp_group = _OnlyRank()
            self._mhc_prewarmed_at_load = True
            block: Any = torch.nn.Module()
            self.model = torch.nn.Module()
            block.mlp = torch.nn.Module()
            block.mlp.experts = _experts(config, quant_config, PREFIXES[role])
            if draft:
                self.model.decoder = block
            else:
                self.model.layers = torch.nn.ModuleList([block])
                vars(self.model).update(start_layer=0, end_layer=1)

        def post_load_weights(self, is_nextn: bool = draft, weight_names: Any = None) -> None:
            """Nothing but experts here."""

    quant_config = one_rank.quantization_config(model_config)
    with draft_context(role):
        return Experts(model_config.hf_config, quant_config)


def _experts(config: Any, quant_config: Any, prefix: str) -> Any:
    import torch
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE

    return FusedMoE(
        num_experts=config.n_routed_experts,
        hidden_size=config.hidden_size,
        intermediate_size=config.moe_intermediate_size,
        layer_id=0,
        top_k=config.num_experts_per_tok,
        params_dtype=torch.bfloat16,
        quant_config=quant_config,
        prefix=prefix,
        routed_scaling_factor=config.routed_scaling_factor,
        swiglu_limit=config.swiglu_limit,
    )


class _OnlyRank:
    is_first_rank = is_last_rank = True


def experts_of(model: Any) -> Any:
    """The FusedMoE of a model that `build` made."""
    block = model.model.decoder if hasattr(model.model, "decoder") else model.model.layers[0]
    return block.mlp.experts


def load_tensors(model: Any, tensors: Iterable[tuple[str, Any]], device: Any) -> None:
    """What SGLang's default loader does with a checkpoint's tensors: load, then post-process."""
    from sglang.srt.model_loader.loader import DefaultModelLoader, device_loading_context

    model.load_weights(tensors)
    if hasattr(DefaultModelLoader, "postprocess_weights"):
        DefaultModelLoader.postprocess_weights(model, device)
        return
    for module in model.modules():  # up to SGLang 0.5.19 in one function with what asks for the GPU's free memory
        if getattr(module, "quant_method", None) is not None:
            with device_loading_context(module, device):
                module.quant_method.process_weights_after_loading(module)


def require_runner(layer: Any, experts: known_kernels.Format, runner: str) -> None:
    """Raise RefusedError where SGLang built the layer with the method of another runner than was asked for."""
    method = type(layer.quant_method).__name__
    wanted = known_kernels.KERNELS.get((experts, runner))
    if wanted is not None and wanted.method not in (None, method):
        raise RefusedError(f"SGLang built {method} instead of {wanted.method}")
