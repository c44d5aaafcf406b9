"""What the overlay asks SGLang about a launch: its flags, its configuration, the process it runs in.

Where releases differ, they differ here and, for layers that have been built, in `sglang_layers`.

Imports are inside the functions: a launcher must not import model code before SGLang does.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from sglang_sm120.checkpoint.expert_formats import Kind
from sglang_sm120.settings import RUNNER
from sglang_sm120.upstream import features
from sglang_sm120.upstream.protocols import ResolvedFlags

Role = Literal["target", "draft"]
DRAFT_PREFIXES = ("model.decoder.", "stages.")  # NextN (EAGLE, MTP) and DSpark

# Where SGLang takes built-in runner names only, its flags carry this one for ours. SGLang then prepares ids, top-k and
# graphs as for a Triton kernel with local experts, which ours is; for packed FP4 experts nobody else can mean it,
# because SGLang's own triton runner reads FP8. (SGLang prepares Marlin alike, but a scheduler could not tell ours from
# Marlin itself.)
STAND_IN = "triton"


def eagle(steps: int = 1) -> list[str]:
    """Flags of speculation with an EAGLE draft that proposes a chain of `steps` tokens."""
    chain = ["--speculative-num-steps", str(steps), "--speculative-eagle-topk", "1"]
    return ["--speculative-algorithm", "EAGLE", *chain, "--speculative-num-draft-tokens", str(steps + 1)]


def flag_name(runner: str) -> str:
    """The name that stands for a runner in SGLang's flags."""
    return STAND_IN if runner == RUNNER and not features.takes_runner_names() else runner


def meant(value: str) -> str:
    """The runner that a value of SGLang's flags stands for where the experts are packed FP4: undoes `flag_name`."""
    return RUNNER if value == STAND_IN and not features.takes_runner_names() else value


def resolving(server_args: Any) -> ResolvedFlags:
    """Read view of the flags as resolved so far; below SGLang 0.5.19 the flags themselves are written step by step."""
    try:
        from sglang.srt.arg_groups.overrides import resolving_view
    except ImportError:
        return cast(ResolvedFlags, server_args)
    return cast(ResolvedFlags, resolving_view(server_args))


def resolving_model_config(server_args: Any) -> Any:
    """The target's ModelConfig while flags are being resolved; SGLang keeps it."""
    try:
        from sglang.srt.arg_groups.overrides import model_config_of
    except ImportError:
        return server_args.get_model_config()
    return model_config_of(server_args)


def quantization_block(server_args: Any) -> tuple[int, int] | None:
    """Block of the checkpoint's FP8 weights, (rows, columns); None without one. ValueError for what is no block."""
    quantization = getattr(model_config(server_args).hf_config, "quantization_config", None) or {}
    block = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
    if not block:
        return None
    if not (isinstance(block, (list, tuple)) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)):
        raise ValueError(f"config.json: weight_block_size is {block!r}; expected two positive whole numbers")
    return block[0], block[1]


def target_kind(server_args: Any) -> Kind:
    """Format of the target's routed experts, from flags that are being resolved."""
    return expert_kind(resolving_model_config(server_args))


def expert_kind(model_config: Any) -> Kind:
    """Format of the target's routed experts, as SGLang's model configuration has it."""
    if model_config.nvfp4_moe_meta is not None:
        return "hybrid-nvfp4"
    if model_config.is_fp4_experts:
        return "other" if _dequantizes_fp4() else "mxfp4"
    return "fp8" if model_config.quantization == "fp8" else "other"


def format_is_forced() -> bool:
    """Whether a variable stands in for SGLang's look at the checkpoint."""
    from sglang.srt.environ import envs

    return bool(envs.SGLANG_DSV4_FP4_EXPERTS.is_set())


def looks_at_experts(model_config: Any) -> bool:
    """Whether SGLang took the format of a model's experts off a checkpoint's tensors."""
    v4 = any(name.startswith("DeepseekV4") for name in model_config.hf_config.architectures or ())
    return v4 and not format_is_forced()


def _dequantizes_fp4() -> bool:
    from sglang.srt.environ import envs

    switch = getattr(envs, "SGLANG_DSV4_FP4_DEQUANT", None)  # from SGLang 0.5.15
    return switch is not None and bool(switch.get())


def is_draft_prefix(prefix: str) -> bool:
    """Whether a module name belongs to a draft: NextN is `model.decoder.*`, DSpark is `stages.*`."""
    return prefix.startswith(DRAFT_PREFIXES)


def role(prefix: str) -> Role:
    """Whose layer a module name is."""
    return "draft" if is_draft_prefix(prefix) else "target"


def layer_runner(prefix: str) -> str:
    """The runner that the flags name for a layer.

    EAGLE swaps the global value while it builds and runs the draft. DSpark does not and would use the target's, so
    the draft's flag is read from the resolved configuration for both.
    """
    from sglang.srt.layers.moe.utils import get_moe_runner_backend

    asked = published("speculative_moe_runner_backend") if is_draft_prefix(prefix) else None
    return meant(str(asked or get_moe_runner_backend().value))


# The groups in which SGLang 0.5.17 and later publish a flag; a group's value can differ within a scope, as the load
# format does while the draft is loaded.
_GROUPS = {
    "load_format": "get_model",
    "speculative_moe_runner_backend": "get_spec",
    "speculative_draft_load_format": "get_spec",
}


def published(field: str) -> Any:
    """A flag as this process runs with it at this moment; None where the release does not have the flag."""
    from sglang.srt import runtime_context

    group = getattr(runtime_context, _GROUPS.get(field, ""), None)
    return resolved(_server_args(), field) if group is None else getattr(group(), field)


def _server_args() -> Any:
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


def loads_dummy_weights(prefix: str) -> bool:
    """Whether the load format of a layer's model leaves packed bytes unset; the draft may have one of its own."""
    of_draft = published("speculative_draft_load_format") if is_draft_prefix(prefix) else None
    found = of_draft or published("load_format")
    return bool(getattr(found, "value", found) == "dummy")


def is_deterministic(view: Any) -> bool:
    """Whether flags that are being resolved ask for deterministic inference; SGLang derives it from a second one."""
    return bool(view.enable_deterministic_inference or getattr(view, "rl_on_policy_target", None))


def runs_deterministically() -> bool:
    """Whether this process serves with SGLang's deterministic inference."""
    return bool(published("enable_deterministic_inference"))


def captures_graphs() -> bool:
    """Whether SGLang may capture CUDA graphs of a forward."""
    return not published("disable_cuda_graph")


def releases_weights() -> bool:
    """Whether the bytes of weights may be given back and come again with any content."""
    return bool(published("enable_memory_saver"))


def experts_may_change() -> bool:
    """Whether a rank may get scales that it did not load, without a weight update that is prepared as a whole.

    EPLB copies experts between ranks. Where weights were released and arrive in several requests, and the release has
    no begin and end of an update, a layer is prepared while some of its experts are still anything.
    """
    moved = published("enable_eplb") or published("ep_num_redundant_experts")
    return bool(moved) or (releases_weights() and not features.has_weight_sessions())


def most_tokens_of_a_forward() -> int | None:
    """Tokens that a forward of this process has at most; None where the flags set no limit."""
    prefill, running = published("chunked_prefill_size"), published("max_running_requests")
    if not prefill or prefill < 0 or not running:
        return None
    drafted = published("speculative_num_draft_tokens") or 1
    # Chunks may be mixed with decoding, and under DP attention a layer sees the tokens of all ranks.
    return int((prefill + running * drafted) * (published("dp_size") or 1))


def resolve(server_args: Any) -> None:
    """Run SGLang's resolution on parsed flags; below SGLang 0.5.19 parsing has done it."""
    if hasattr(server_args, "resolve_once"):
        server_args.resolve_once()


def resolved(server_args: Any, field: str) -> Any:
    """A flag's value after resolution."""
    if hasattr(server_args, "resolved_dict"):
        return server_args.resolved_dict().get(field)
    return getattr(server_args, field, None)


def model_config(server_args: Any, draft_path: str | None = None) -> Any:
    """SGLang's ModelConfig of the target, or of the draft in `draft_path`."""
    from sglang.srt.configs.model_config import ModelConfig

    if draft_path is None:
        return ModelConfig.from_server_args(server_args)
    return ModelConfig.from_server_args(server_args, model_path=draft_path, is_draft_model=True)
