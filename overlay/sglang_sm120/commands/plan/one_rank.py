"""One scheduler rank, stood up in this process alone: its published configuration, its widths, its layers' dispatcher.

For `plan`'s child and for tests and demos that build SGLang's layers without process groups. It writes into SGLang.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from sglang_sm120.checkpoint.shares import expert_ranks
from sglang_sm120.moe import known_kernels
from sglang_sm120.settings import RUNNER
from sglang_sm120.upstream import contracts, server_flags


def publish_as_scheduler(server_args: Any, rank: int = 0) -> None:
    """Install the configuration in this process as the scheduler of a rank does, for one rank alone."""
    from sglang.srt import runtime_context
    from sglang.srt.layers.moe.utils import initialize_moe_config

    if hasattr(runtime_context, "SpawnRanks"):
        ranks = runtime_context.SpawnRanks(world_rank=rank, gpu_id=rank)
        runtime_context.publish(server_args, role="scheduler", ranks=ranks)
    else:
        if hasattr(runtime_context, "publish"):
            runtime_context.publish(server_args, role="scheduler")
        else:
            from sglang.srt.server_args import set_global_server_args_for_scheduler

            set_global_server_args_for_scheduler(server_args)
        _state_widths(server_args, rank)
    initialize_moe_config(*([server_args] if inspect.signature(initialize_moe_config).parameters else []))


_WIDTHS: list[Any] = []  # contexts that must stay open; a collected one would undo itself


def _state_widths(server_args: Any, rank: int) -> None:
    """Tell SGLang's parallel context what it would ask of process groups, which a rank alone does not have."""
    from sglang.srt.runtime_context import get_parallel

    flags = partial(server_flags.resolved, server_args)
    tp, ep, moe_dp, attn_cp = (flags(f"{name}_size") or 1 for name in ("tp", "ep", "moe_dp", "attn_cp"))
    attn_dp = flags("dp_size") if flags("enable_dp_attention") else 1
    copy, shared = tp // moe_dp, expert_ranks(tp, ep, moe_dp)  # ranks that hold all experts once, ranks of one expert
    attn_tp = tp // attn_dp // attn_cp
    widths = {"world": (tp, rank), "tp": (tp, rank), "pp": (1, 0), "moe_dp": (moe_dp, rank // copy)}
    widths |= {"moe_ep": (ep, rank % copy // shared), "moe_tp": (shared, rank % shared)}
    widths |= {"attn_dp": (attn_dp, rank // (tp // attn_dp)), "attn_cp": (attn_cp, rank // attn_tp % attn_cp)}
    widths |= {"attn_tp": (attn_tp, rank % attn_tp)}
    stated = {f"{name}_size": size for name, (size, _) in widths.items()}
    context = get_parallel().override(**stated, **{f"{name}_rank": at for name, (_, at) in widths.items()})
    context.__enter__()
    _WIDTHS.append(context)


def quantization_config(config: Any) -> Any:
    """What SGLang's loader builds from the checkpoint's quantization configuration."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader

    # The loader finds the model's class by importing all of SGLang's models; only DeepSeek-V4's are wanted here.
    by_name, loader.get_model_architecture = loader.get_model_architecture, deepseek_class
    try:
        return loader._get_quantization_config(config, LoadConfig())
    finally:
        loader.get_model_architecture = by_name


def deepseek_class(config: Any) -> tuple[type, str]:
    """The class of SGLang's DeepSeek-V4 models that an architecture names."""
    architecture = config.hf_config.architectures[0]
    for name in ("deepseek_v4", "deepseek_v4_nextn", "deepseek_v4_dspark"):
        if not contracts.has_module(f"sglang.srt.models.{name}"):
            continue
        entries = importlib.import_module(f"sglang.srt.models.{name}").EntryClass
        for entry in entries if isinstance(entries, list) else [entries]:
            if entry.__name__ == architecture:
                return entry, architecture
    raise ValueError(f"config.json: architectures {architecture}; this SGLang has no DeepSeek-V4 model of that name")


@contextmanager
def speculative_context() -> Iterator[None]:
    """The context in which SGLang builds and runs an EAGLE draft: the runner and the all-to-all are the draft's."""
    from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context

    with speculative_moe_backend_context(), speculative_moe_a2a_backend_context():
        yield


def all_to_all() -> str:
    """The dispatch between ranks that SGLang's layers are built for at this moment; `none` is the standard one."""
    from sglang.srt.layers.moe.utils import get_moe_a2a_backend

    return str(get_moe_a2a_backend().value)


@contextmanager
def standard_dispatch() -> Iterator[None]:
    """Give layers the standard dispatcher where the launch has an all-to-all, which one rank alone does not have.

    An all-to-all wants process groups, its own packages and memory of other GPUs when it is made. The layer's method
    and weights do not depend on it.
    """
    from sglang.srt.layers.moe.fused_moe_triton import layer
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatcher

    if all_to_all() == "none":
        yield
        return
    original = layer.create_moe_dispatcher
    layer.create_moe_dispatcher = lambda config, *_args, **_kwargs: StandardDispatcher(config)
    try:
        yield
    finally:
        layer.create_moe_dispatcher = original


def runner_of(layer: Any) -> str | None:
    """The runner that a built FusedMoE reports; `sm120_triton` for our method, which runs its kernel directly."""
    if type(layer.quant_method).__name__ in known_kernels.OURS:
        return RUNNER
    return getattr(getattr(layer, "runner_backend", None), "value", None)


def simulated_rank() -> Any:
    """Context for one rank alone on the CPU: no process groups, and the dispatcher's expert map beside the tensors.

    The caller gets the rank's own share of the result, before any sum over ranks.
    """
    from types import SimpleNamespace

    from sglang.srt.layers.moe.token_dispatcher import standard
    from sglang.srt.runtime_context import get_parallel

    standard.get_device = lambda *_args: "cpu"
    return get_parallel().override(tp_group=SimpleNamespace(world_size=get_parallel().tp_size))
