"""One MoE layer of each kind, built by SGLang on the meta device as a scheduler builds it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from sglang_sm120.commands.plan import layer_faults, one_rank
from sglang_sm120.commands.plan.document import Layer
from sglang_sm120.moe import decisions, known_kernels
from sglang_sm120.moe.decisions import Decision
from sglang_sm120.settings import RUNNER
from sglang_sm120.upstream import server_flags
from sglang_sm120.upstream.server_flags import Role


@dataclass(frozen=True)
class Shape:
    """SGLang's arguments of a MoE layer that the checkpoint's configuration sets."""

    num_experts: int
    hidden_size: int
    intermediate_size: int
    top_k: int
    routed_scaling_factor: float | None
    swiglu_limit: float | None


@dataclass(frozen=True)
class _Built:
    """A layer's method and runner, and who decided, where somebody did while it was built."""

    method: str
    runner: str | None
    packed: bool
    faults: tuple[str, ...]
    decided: Decision | None
    batch_invariant: bool


def shape_of(model_config: Any) -> Shape:
    """The target's, or a draft's where the configuration is a draft's."""
    text = model_config.hf_text_config
    return Shape(
        text.n_routed_experts,
        text.hidden_size,
        text.moe_intermediate_size,
        text.num_experts_per_tok,
        getattr(text, "routed_scaling_factor", None),
        getattr(text, "swiglu_limit", None),
    )


def draft_shape(server_args: Any, algorithm: str, target_path: str) -> Shape:
    """The draft's; DSpark's stages may have other counts of experts than the target's layers."""
    path = server_flags.resolved(server_args, "speculative_draft_model_path") or target_path
    model_config = server_flags.model_config(server_args, draft_path=path)
    text, shape = model_config.hf_text_config, shape_of(model_config)
    if algorithm != "DSPARK":
        return shape
    experts, top_k = (getattr(text, f"dspark_{n}", None) for n in ("n_routed_experts", "num_experts_per_tok"))
    return replace(shape, num_experts=experts or shape.num_experts, top_k=top_k or shape.top_k)


def target(server_args: Any) -> tuple[Layer, str | None]:
    """The target's layers, and a warning where they are not all of one kind."""
    model_config = server_flags.model_config(server_args)
    runner = server_flags.resolved(server_args, "moe_runner_backend")
    prefixes = [f"model.layers.{i}.mlp.experts" for i in range(model_config.hf_text_config.num_hidden_layers)]
    shape = shape_of(model_config)
    redundant = server_flags.resolved(server_args, "ep_num_redundant_experts") or 0
    shape = replace(shape, num_experts=shape.num_experts + redundant)
    built = _build(model_config, prefixes, shape, nullcontext())
    if not built:
        raise SystemExit("the checkpoint has no layers (config.json: num_hidden_layers)")
    first = built[0]
    where = [str(i) for i, b in enumerate(built) if b.method != first.method]
    others = sorted({b.method for b in built} - {first.method})
    warning = f"layers {', '.join(where)} get {', '.join(others)} instead" if others else None
    return _layer("target", first, runner), warning


def draft(server_args: Any, algorithm: str, target_path: str) -> Layer:
    """The draft's layer."""
    path = server_flags.resolved(server_args, "speculative_draft_model_path") or target_path
    model_config = server_flags.model_config(server_args, draft_path=path)
    shape, prefix = draft_shape(server_args, algorithm, target_path), "model.decoder.mlp.experts"
    context: AbstractContextManager[Any] = nullcontext()
    if algorithm == "DSPARK":
        prefix = "stages.0.mlp.experts"
    else:
        context = one_rank.speculative_context()
    built = _build(model_config, [prefix], shape, context)[0]
    # DSpark runs its draft on the target's runner whatever the draft's flag says, except where a patch decided.
    flag = "moe_runner_backend" if algorithm == "DSPARK" else "speculative_moe_runner_backend"
    decided = built.decided.runner if built.decided else None
    runner = decided or built.runner or server_flags.resolved(server_args, flag)
    return replace(_layer("draft", built, runner), algorithm="DSPARK" if algorithm == "DSPARK" else "EAGLE")


def _build(
    model_config: Any, prefixes: Sequence[str], shape: Shape, context: AbstractContextManager[Any]
) -> list[_Built]:
    """SGLang's own FusedMoE for each prefix."""
    import torch
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE

    built = []
    config = one_rank.quantization_config(model_config)  # imports the model, which must not land on the meta device
    packed = getattr(config, "is_fp4_experts", False) and not getattr(config, "dequant_fp4_to_fp8", False)
    given = {"params_dtype": model_config.dtype, "quant_config": config, **asdict(shape)}
    with context, one_rank.standard_dispatch(), torch.device("meta"):
        for number, prefix in enumerate(prefixes):
            decisions.forget_dispatch()
            layer = FusedMoE(layer_id=number, prefix=prefix, **given)
            built.append(
                _Built(
                    type(layer.quant_method).__name__,
                    one_rank.runner_of(layer),
                    bool(packed),
                    tuple(layer_faults.of(layer)),
                    decisions.DECISIONS.get(("dispatch", server_flags.role(prefix))),
                    bool(getattr(layer.quant_method, "batch_invariant", False)),
                )
            )
    return built


def _layer(role: Role, built: _Built, runner: str | None) -> Layer:
    """What the answer says of a layer; a method that is not the one decided on is a fault."""
    known = built.decided or decisions.DECISIONS.get(("resolution", role))
    decided, ours = known.runner if known else None, built.method in known_kernels.OURS
    undone = None
    if decided is not None and (decided == RUNNER) != ours:
        by = (known.changed_by if known else None) or "the overlay"
        undone = f"{by} decided on {decided}, and SGLang built {built.method}: {_why_not_ours()}"
    return Layer(
        method=built.method,
        runner=RUNNER if ours else runner,
        packed=built.packed,
        faults=built.faults,
        undone=undone,
        changed_by=known.changed_by if known else None,
        reason=known.reason if known else "SGLang's own choice",
        batch_invariant=built.batch_invariant,
    )


def _why_not_ours() -> str:
    """Why a layer may have another method than the one decided on, and what to do."""
    name = "SGLANG_DSV4_FP4_EXPERTS"
    if name in os.environ:
        return f"{name}={os.environ[name]} stands in for the look at the checkpoint; unset it"
    return (
        "something that acts after sm120 gave the layer that method (a plugin, a sitecustomize, a module on "
        "PYTHONPATH); `sglang-sm120 doctor` names what it finds"
    )
