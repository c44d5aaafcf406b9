"""What the overlay asks SGLang about a launch: its flags, its configuration, the process it runs in.

Where releases differ, they differ here and, for layers that have been built, in `sglang_layers`.

Imports are inside the functions: a launcher must not import model code before SGLang does.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from sglang_sm120 import contracts, features
from sglang_sm120.routing import Launch
from sglang_sm120.settings import RUNNER

DRAFT_PREFIXES = ("model.decoder.", "stages.")  # NextN (EAGLE, MTP) and DSpark

# Where SGLang takes built-in runner names only, the draft's flag carries this one for ours. SGLang then prepares ids,
# top-k and graphs as for a Triton kernel with local experts, which ours is; for packed FP4 experts nobody else can mean
# it, because SGLang's own triton runner reads FP8.
STAND_IN = "triton"


def flag_name(runner: str) -> str:
    """The name that stands for a runner in SGLang's flags."""
    return STAND_IN if runner == RUNNER and not features.takes_runner_names() else runner


def resolving(server_args: Any) -> Any:
    """Read view of the flags as resolved so far; below SGLang 0.5.19 the flags themselves are written step by step."""
    try:
        from sglang.srt.arg_groups.overrides import resolving_view
    except ImportError:
        return server_args
    return resolving_view(server_args)


def resolving_model_config(server_args: Any) -> Any:
    """The target's ModelConfig while flags are being resolved; SGLang keeps it."""
    try:
        from sglang.srt.arg_groups.overrides import model_config_of
    except ImportError:
        return server_args.get_model_config()
    return model_config_of(server_args)


def launch_facts(server_args: Any, draft_default: str) -> Launch:
    """What routing looks at, from flags that are being resolved."""
    view, config = resolving(server_args), resolving_model_config(server_args)
    text = config.hf_text_config
    return Launch(
        kind=expert_kind(config),
        hidden_size=text.hidden_size,
        moe_intermediate_size=text.moe_intermediate_size,
        tp=view.tp_size,
        ep=view.ep_size,
        target_runner=view.moe_runner_backend,
        draft_runner=view.speculative_moe_runner_backend,
        quantization=view.quantization,
        speculative=view.speculative_algorithm,
        draft_default=draft_default,
        all_to_all=view.moe_a2a_backend,
        draft_kind=_draft_kind(server_args, view),
        takes_names=features.takes_runner_names(),
        cutlass_mxfp4=features.has_cutlass_mxfp4(),
        default_reads_fp4_only=features.default_reads_fp4_only(),
        ids_per_layer=features.numbers_experts_per_layer(),
    )


def _draft_kind(server_args: Any, view: Any) -> str | None:
    """Format of the draft's experts where it is another checkpoint than the target's, which is the usual one."""
    path = view.speculative_draft_model_path
    if not view.speculative_algorithm or path in (None, view.model_path):
        return None
    return expert_kind(model_config(server_args, draft_path=path))


def quantization_block(server_args: Any) -> tuple[int, int] | None:
    """Block of the checkpoint's FP8 weights, (rows, columns); None without one."""
    quantization = getattr(model_config(server_args).hf_config, "quantization_config", None) or {}
    block = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
    return (int(block[0]), int(block[1])) if block else None


def target_kind(server_args: Any) -> str:
    """Format of the target's routed experts, from flags that are being resolved."""
    return expert_kind(resolving_model_config(server_args))


def expert_kind(model_config: Any) -> str:
    """Format of the target's routed experts, as SGLang's model configuration has it."""
    if model_config.nvfp4_moe_meta is not None:
        return "hybrid-nvfp4"
    if model_config.is_fp4_experts:
        return "other" if _dequantizes_fp4() else "mxfp4"
    return "fp8" if model_config.quantization == "fp8" else "other"


def _dequantizes_fp4() -> bool:
    from sglang.srt.environ import envs

    switch = getattr(envs, "SGLANG_DSV4_FP4_DEQUANT", None)  # from SGLang 0.5.15
    return switch is not None and bool(switch.get())


def is_draft_prefix(prefix: str) -> bool:
    """Whether a module name belongs to a draft: NextN is `model.decoder.*`, DSpark is `stages.*`."""
    return prefix.startswith(DRAFT_PREFIXES)


def layer_runner(prefix: str) -> str:
    """The runner that the flags name for a layer.

    EAGLE swaps the global value while it builds and runs the draft. DSpark does not and would use the target's, so
    the draft's flag is read from the resolved configuration for both.
    """
    from sglang.srt.layers.moe.utils import get_moe_runner_backend

    asked = _published("speculative_moe_runner_backend") if is_draft_prefix(prefix) else None
    if asked == STAND_IN and not features.takes_runner_names():
        return RUNNER
    return asked or get_moe_runner_backend().value


def _published(field: str) -> Any:
    """A flag of the configuration that this process runs with."""
    try:
        from sglang.srt.runtime_context import get_spec
    except ImportError:
        return getattr(_published_args(), field)
    return getattr(get_spec(), field)


def _published_args() -> Any:
    """The flags that this process runs with, where SGLang keeps them in one object."""
    try:
        from sglang.srt.runtime_context import get_server_args
    except ImportError:
        from sglang.srt.server_args import get_global_server_args as get_server_args
    return get_server_args()


def global_runner() -> str:
    """The runner that SGLang's layers are built for and run on at this moment."""
    from sglang.srt.layers.moe.utils import get_moe_runner_backend

    return str(get_moe_runner_backend().value)


def register_runner_name(name: str) -> None:
    """Make the name an accepted value of SGLang's two runner flags; the value itself is registered by `adopt_name`."""
    from sglang.srt.server_args import MOE_RUNNER_BACKEND_CHOICES, add_moe_runner_backend_choices

    if name not in MOE_RUNNER_BACKEND_CHOICES:
        add_moe_runner_backend_choices([name])


def loads_dummy_weights() -> bool:
    """Whether --load-format dummy leaves the packed bytes unset."""
    return str(_published_args().load_format) == "dummy"


def most_tokens_of_a_forward() -> int | None:
    """Tokens that a forward of this process has at most; None where the flags set no limit."""
    args = _published_args()
    prefill, running = resolved(args, "chunked_prefill_size"), resolved(args, "max_running_requests")
    if not prefill or prefill < 0 or not running:
        return None
    drafted = resolved(args, "speculative_num_draft_tokens") or 1
    # Chunks may be mixed with decoding, and under DP attention a layer sees the tokens of all ranks.
    return int((prefill + running * drafted) * (resolved(args, "dp_size") or 1))


def resolve(server_args: Any) -> None:
    """Run SGLang's resolution on parsed flags; below SGLang 0.5.19 parsing has done it."""
    if hasattr(server_args, "resolve_once"):
        server_args.resolve_once()


def resolved(server_args: Any, field: str) -> Any:
    """A flag's value after resolution."""
    if hasattr(server_args, "resolved_dict"):
        return server_args.resolved_dict().get(field)
    return getattr(server_args, field, None)


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

    tp, ep = resolved(server_args, "tp_size"), resolved(server_args, "ep_size")
    attn_dp = resolved(server_args, "dp_size") if resolved(server_args, "enable_dp_attention") else 1
    widths = {"world": (tp, rank), "tp": (tp, rank), "pp": (1, 0), "moe_dp": (1, 0), "attn_cp": (1, 0)}
    widths |= {"moe_ep": (ep, rank // (tp // ep)), "moe_tp": (tp // ep, rank % (tp // ep))}
    widths |= {"attn_dp": (attn_dp, rank // (tp // attn_dp)), "attn_tp": (tp // attn_dp, rank % (tp // attn_dp))}
    stated = {f"{name}_size": size for name, (size, _) in widths.items()}
    context = get_parallel().override(**stated, **{f"{name}_rank": at for name, (_, at) in widths.items()})
    context.__enter__()
    _WIDTHS.append(context)


def model_config(server_args: Any, draft_path: str | None = None) -> Any:
    """SGLang's ModelConfig of the target, or of the draft in `draft_path`."""
    from sglang.srt.configs.model_config import ModelConfig

    if draft_path is None:
        return ModelConfig.from_server_args(server_args)
    return ModelConfig.from_server_args(server_args, model_path=draft_path, is_draft_model=True)


def quantization_config(config: Any) -> Any:
    """What SGLang's loader builds from the checkpoint's quantization configuration."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader

    # The loader finds the model's class by importing all of SGLang's models; only DeepSeek-V4's are wanted here.
    by_name, loader.get_model_architecture = loader.get_model_architecture, _deepseek_class
    try:
        return loader._get_quantization_config(config, LoadConfig())
    finally:
        loader.get_model_architecture = by_name


def _deepseek_class(config: Any) -> tuple[type, str]:
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


def speculative_context() -> Any:
    """The context in which SGLang builds and runs an EAGLE draft."""
    from sglang.srt.layers.moe.utils import speculative_moe_backend_context

    return speculative_moe_backend_context()


def runner_of(layer: Any) -> str | None:
    """The runner that a built FusedMoE reports; `sm120_triton` for our method, which runs its kernel directly."""
    if type(layer.quant_method).__name__ == "Sm120Mxfp4MoEMethod":
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
