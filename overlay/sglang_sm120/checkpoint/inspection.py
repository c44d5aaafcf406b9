"""What a DeepSeek-V4 checkpoint on disk holds, read from `config.json` and the safetensors headers alone.

No torch, no SGLang, no weights. The target is judged here, the draft, whom a launch may not read, in `drafts`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from sglang_sm120.checkpoint import completeness, drafts, expert_formats, headers, ignored, memory, survey
from sglang_sm120.checkpoint.expert_formats import CALLED, Block, Kind, called, dtype, kind_of
from sglang_sm120.checkpoint.headers import INDEX, CheckpointError, tensor_headers
from sglang_sm120.checkpoint.memory import Weights
from sglang_sm120.checkpoint.survey import Experts, Survey

__all__ = ["INDEX", "Checkpoint", "CheckpointError", "Inspected", "inspect", "read", "tensor_headers"]

DEEPSEEK_V4 = ("deepseek_v4", "deepseek_v41")
_COUNTS = ("n_routed_experts", "num_experts_per_tok")
_DSPARK_COUNTS = ("dspark_n_routed_experts", "dspark_num_experts_per_tok")
_SIZES = ("hidden_size", "moe_intermediate_size", *_COUNTS)


@dataclass(frozen=True)
class Checkpoint:
    """Facts that decide the MoE kernels.

    Attributes:
        kind: `mxfp4`, `hybrid-nvfp4`, `fp8` or `other`.
        hidden_size, moe_intermediate_size, experts, top_k: widths and counts of a routed MoE layer, unsharded.
        swiglu_limit: clamp of gate (above) and up (both sides); None without one.
        problems: faults of the target that make a launch fail or compute nonsense, each naming what to change.
    """

    kind: Kind
    hidden_size: int | None = None
    moe_intermediate_size: int | None = None
    experts: int | None = None
    top_k: int | None = None
    swiglu_limit: float | None = None
    problems: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_deepseek_v4(self) -> bool:
        return self.kind != "other"


@dataclass(frozen=True)
class Inspected:
    """A directory, read once.

    Attributes:
        checkpoint: the target's facts.
        survey: what the headers say; nothing of a model that is not DeepSeek-V4.
        text, quantization: the parts of config.json that are about the text model and its formats.
        exporter: what quantized a DeepSeek-V4 checkpoint that the overlay leaves alone; None for all others.
    """

    checkpoint: Checkpoint
    survey: Survey = field(default_factory=lambda: Survey({}))
    text: dict[str, Any] = field(default_factory=dict)
    quantization: dict[str, Any] = field(default_factory=dict)
    exporter: str | None = None

    def draft_problems(self, algorithm: str, reads: Kind | None = None) -> list[str]:
        """What keeps a launch from drafting with what is here; arguments as for `drafts.problems`."""
        foreign = expert_formats.of_another_exporter(self.quantization, self._usual(draft=True))
        return [foreign] if foreign else drafts.problems(self.survey, self.text, algorithm, reads) if self.text else []

    @property
    def draft_kind(self) -> Kind | None:
        """Format of the draft's routed experts; None where no header says it."""
        return drafts.format_of(self.survey, drafts.layers_of(self.text))

    @property
    def looked_at(self) -> Kind | None:
        """Format that SGLang by itself takes all experts for: packed FP4, or FP8; None where no expert says it."""
        first = self.survey.blocks.get(self.survey.first or "")
        kind = kind_of(first.usual) if first else "other"
        return None if kind == "other" else "fp8" if kind == "fp8" else "mxfp4"

    @property
    def weights(self) -> Weights | None:
        """Bytes of all tensors; None without any."""
        return memory.weigh(self.survey, drafts.layers_of(self.text))

    @property
    def input_scales(self) -> bool:
        """Whether NVFP4 experts have the scales of activations that W4A4 kernels need; headers alone prove nothing."""
        experts = self._experts(draft=False).values()
        return self.survey.is_part or all(e.input_scales for e in experts if kind_of(e.usual) == "hybrid-nvfp4")

    def converted_scales(self, draft: bool) -> str | None:
        """Type of the first scales that SGLang's loader would not keep as they are; None where it does."""
        return next(filter(None, map(expert_formats.converted, self._usual(draft).values())), None)

    def _experts(self, draft: bool) -> dict[str, Experts]:
        layers = drafts.layers_of(self.text)
        return {name: found for name, found in self.survey.blocks.items() if drafts.is_draft(name, layers) == draft}

    def _usual(self, draft: bool) -> dict[str, Block]:
        return {name: found.usual for name, found in self._experts(draft).items()}


def inspect(directory: Path) -> Checkpoint:
    """The facts of a local checkpoint. Raises CheckpointError as `read` does."""
    return read(directory).checkpoint


def read(directory: Path) -> Inspected:
    """Read a local checkpoint.

    Raises:
        CheckpointError: `config.json`, the index or a shard is absent, cut short or not what its format says.
    """
    config, text = headers.configuration(directory)
    quantization = config.get("quantization_config") or text.get("quantization_config") or {}
    if not isinstance(quantization, dict):
        raise CheckpointError(f"{directory / 'config.json'}: quantization_config is no JSON object; download it again")
    if config.get("model_type") not in DEEPSEEK_V4:
        return Inspected(Checkpoint("other"))
    found = survey.read(directory)
    kind, problems = _target(quantization, found, text)
    problems += _bad_sizes(text)
    facts = Checkpoint(
        kind,
        text.get("hidden_size"),
        text.get("moe_intermediate_size"),
        text.get("n_routed_experts"),
        text.get("num_experts_per_tok"),
        text.get("swiglu_limit"),
        tuple(problems),
    )
    exporter = str(quantization.get("quant_method", "an exporter without a name")) if kind == "other" else None
    return Inspected(facts, found, text, quantization, exporter)


def _bad_sizes(text: dict[str, Any]) -> list[str]:
    """Sizes of routed MoE layers that no layer can have. What the configuration leaves out SGLang fills in."""
    given = {name: text[name] for name in _SIZES if text.get(name) is not None}
    given |= {name: text[name] for name in _DSPARK_COUNTS if text.get(name)}  # SGLang takes 0 for the target's
    good = {name: value for name, value in given.items() if _is_count(value)}
    bad = given.keys() - good.keys()
    problems = [f"config.json: {n} is {json.dumps(given[n])}; expected a positive whole number" for n in sorted(bad)]
    stages = tuple(own if own in given else name for own, name in zip(_DSPARK_COUNTS, _COUNTS, strict=True))
    limit = text.get("swiglu_limit")
    if limit is not None and not (_is_number(limit) and 0 < limit < float("inf")):
        problems.append(f"config.json: swiglu_limit is {json.dumps(limit)}; expected a positive number, or null")
    for experts, top_k in dict.fromkeys((_COUNTS, stages)):
        if {experts, top_k} <= good.keys() and good[top_k] > good[experts]:
            problems.append(f"config.json: {top_k} is {good[top_k]}; expected 1 to {good[experts]}, as {experts} says")
    return problems


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _target(quantization: dict[str, Any], found: Survey, text: dict[str, Any]) -> tuple[Kind, list[str]]:
    """Kind of the target's routed experts, and what keeps SGLang from reading them."""
    layers = drafts.layers_of(text)
    target = {name: experts for name, experts in found.blocks.items() if not drafts.is_draft(name, layers)}
    usual = {name: experts.usual for name, experts in target.items()}
    foreign = expert_formats.of_another_exporter(quantization, usual)
    if foreign:
        return "other", [foreign]
    kind, problems = _kind(quantization, usual)
    for name, experts in target.items():
        problems += expert_formats.unreadable(name, experts.usual)
        problems += completeness.odd_scales(name, experts)
    if kind != "other" and not found.is_part:
        problems += completeness.of_target(target, text, layers)
    return kind, problems


def _kind(quantization: dict[str, Any], blocks: Mapping[str, Block]) -> tuple[Kind, list[str]]:
    """Kind of the target's routed experts, and what contradicts the configuration."""
    declared = (
        str(quantization.get("quant_algo", "")).upper() == "MIXED_PRECISION"
        and str(quantization.get("moe_quant_algo", "")).upper() == "NVFP4"
    )
    excluded = {name for name in blocks if declared and ignored.excludes(quantization, name)}
    parts = next((block for name, block in blocks.items() if name not in excluded), {})
    weight = dtype(parts, "w1.weight")
    kind: Kind = kind_of(parts) if weight else ("hybrid-nvfp4" if declared else _declared_kind(quantization))
    problems = _undeclared(quantization, parts, kind, declared)
    if kind == "other" and weight:
        problems.append(f"the routed experts have dtype {weight}; expected I8 (MXFP4), U8 (NVFP4) or F8_E4M3 (FP8)")
    for name, block in blocks.items():
        reads = "mxfp4" if name in excluded else kind
        if dtype(block, "w1.weight") and kind_of(block) != reads and kind != "other":
            of = f"the experts of {name} are {called(block)}"
            problems.append(f"{of}, and SGLang would read them as {CALLED[reads]}; convert the checkpoint anew")
    return kind, problems


def _undeclared(quantization: dict[str, Any], parts: Block, kind: Kind, declared: bool) -> list[str]:
    """What the configuration says of the target's experts that their tensors contradict."""
    where = "config.json: quantization_config"
    weight, scale = dtype(parts, "w1.weight"), dtype(parts, "w1.weight_scale")
    problems = []
    if declared and str(quantization.get("group_size")) != "16":
        size = quantization.get("group_size")
        state = "missing" if size is None else str(size)
        problems.append(f"{where}.group_size is {state}; NVFP4 experts need it, and have 16")
    if kind == "hybrid-nvfp4" and not declared:
        problems.append(
            f"the routed experts are NVFP4 (U8 bytes with {scale} scales), but {where}.moe_quant_algo does not say so; "
            'SGLang would read them as MXFP4. Restore "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4"'
        )
    if declared and weight and weight != "U8":
        problems.append(f"{where}.moe_quant_algo says NVFP4, but the routed experts have dtype {weight}; expected U8")
    elif declared and weight and kind == "mxfp4":
        problems.append(f"{where}.moe_quant_algo says NVFP4, but the routed experts are MXFP4 by their scales")
    return problems


def _declared_kind(quantization: dict[str, Any]) -> Kind:
    """Without expert tensors on disk (weights elsewhere), what the configuration says."""
    return "fp8" if quantization.get("quant_method") == "fp8" else "other"
