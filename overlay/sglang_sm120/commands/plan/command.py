"""`sglang-sm120 plan`: which MoE kernels a launch would run, decided by the installed SGLang.

The checkpoint's facts are read here; everything else is asked of SGLang in a child process.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from sglang_sm120 import __version__, gpu, settings
from sglang_sm120.checkpoint import inspection, memory
from sglang_sm120.checkpoint.inspection import Checkpoint, CheckpointError
from sglang_sm120.commands.findings import toolchain
from sglang_sm120.commands.plan import judge, output_head
from sglang_sm120.commands.plan.ask import NoAnswerError, ask
from sglang_sm120.commands.plan.document import LayerPlan, OtherKernels, Plan, Request, Sizes
from sglang_sm120.commands.plan.simulate import SIMULATED
from sglang_sm120.upstream import releases


def make(model: Path, flags: list[str], arch: str | None = None, memory_gib: int = 96, stock: bool = False) -> Plan:
    """The plan. A launch that would fail has non-empty `errors`.

    Args:
        model: checkpoint directory.
        flags: SGLang server flags, without the model.
        arch: one of `SIMULATED`; this machine's GPU, else `sm120`, if None.
        memory_gib: memory of each simulated GPU.
        stock: leave the overlay out.
    """
    present = gpu.detect()
    arch = arch or (present.arch if present and present.arch in SIMULATED else "sm120")
    plan = Plan(
        sglang=releases.installed(),
        overlay=__version__,
        arch=arch,
        simulated=present is None or present.arch != arch,
        stock=stock,
    )
    try:
        facts = inspection.inspect(model)
    except CheckpointError as error:
        return replace(plan, errors=(str(error),))
    plan = replace(plan, checkpoint=facts, errors=tuple(f"{model}: {problem}" for problem in facts.problems))
    exporter = None if facts.is_deepseek_v4 else _exporter(model)
    if not facts.is_deepseek_v4 and not plan.errors and plan.sglang is not None:
        if exporter is None:
            said = f"{model / 'config.json'}: not a DeepSeek-V4 checkpoint; the overlay leaves it alone"
            return replace(plan, warnings=(said,))
        said = f"config.json: quant_method is {exporter}, which the overlay does not patch; SGLang alone decides"
        plan = replace(plan, warnings=(said,))
    plan = replace(plan, errors=plan.errors or _usage(plan, flags))
    return plan if plan.errors else _asked(plan, model, flags, memory_gib)


def _exporter(model: Path) -> str | None:
    """The format of a DeepSeek-V4 checkpoint that the overlay leaves alone, by its name; None for other models."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") not in inspection.DEEPSEEK_V4:
        return None
    quantization = config.get("quantization_config") or {}
    return str(quantization.get("quant_method", "not quantized"))


def _usage(plan: Plan, flags: list[str]) -> tuple[str, ...]:
    """What keeps SGLang from being asked at all."""
    if plan.sglang is None:
        return ("SGLang is not installed beside sglang-sm120; install it first: pip install sglang",)
    if any(flag.split("=")[0] in ("--model-path", "--model") for flag in flags):
        return ("--model-path after -- names a second model; plan takes the one of --model",)
    return ()


def _asked(plan: Plan, model: Path, flags: list[str], memory_gib: int) -> Plan:
    """The plan with what SGLang said of the launch."""
    assumed, filtered = os.environ.get(settings.ASSUME.name), os.environ.get("SGLANG_PLUGINS")
    if assumed and assumed != plan.arch:
        said = f"{settings.ASSUME.name}={assumed} routes MoE layers, whatever --arch {plan.arch} says"
        plan = replace(plan, warnings=(*plan.warnings, said))
    request = Request(
        model=str(model), flags=tuple(flags), arch=plan.arch, memory_gib=memory_gib, head=output_head.dtype(model)
    )
    if plan.arch in settings.SM12X:
        plan = replace(plan, warnings=(*plan.warnings, *(f.line for f in toolchain.ptxas(plan.arch))))
    try:
        answer = ask(request, plan.stock)
    except NoAnswerError as error:
        return replace(plan, errors=(str(error),))
    if not plan.stock and filtered and not answer.patches:
        said = f"SGLANG_PLUGINS={filtered} leaves sm120 out: this is stock SGLang"
        answer = replace(answer, warnings=(*answer.warnings, said))
    plan = judge.judged(plan, answer)
    return plan if answer.sizes is None else _weighed(plan, model, memory_gib, answer.sizes)


def _weighed(plan: Plan, model: Path, memory_gib: int, sizes: Sizes) -> Plan:
    """Weights of each GPU against its memory; more than it has is an error."""
    try:
        weights = memory.weigh(model)
    except CheckpointError as damage:
        return replace(plan, errors=(*plan.errors, str(damage)))
    if weights is None:
        return plan
    found = memory.budget(
        weights,
        memory_gib,
        sizes.tp_size,
        sizes.pp_size,
        bool(sizes.speculative_algorithm),
        sizes.mem_fraction_static or 1.0,  # unset where SGLang leaves it to the GPU that it finds
        ep=sizes.ep_size,
        moe_dp=sizes.moe_dp_size or 1,
    )
    plan = replace(plan, memory=found)
    if found.fits:
        return plan
    remedy = f"raise --tp (it is {sizes.tp_size})"
    if (sizes.moe_dp_size or 1) > 1:
        remedy += f" or lower --moe-dp-size (it is {sizes.moe_dp_size})"
    error = (
        f"memory: the weights take at least {found.weights_gib_least} GiB of each GPU, and SGLang has "
        f"{found.static_gib} of its {memory_gib} GiB for weights and KV cache; {remedy}"
    )
    return replace(plan, errors=(*plan.errors, error))


def _sizes(facts: Checkpoint) -> str:
    """What the configuration says of a routed MoE layer; nothing of a checkpoint that is not DeepSeek-V4's."""
    known = (
        ("{} experts", facts.experts),
        ("top {}", facts.top_k),
        ("hidden {}", facts.hidden_size),
        ("intermediate {}", facts.moe_intermediate_size),
        ("clamp {}", facts.swiglu_limit),
    )
    said = [form.format(value) for form, value in known if value is not None]
    return f": {', '.join(said)}" if said else ""


def render(plan: Plan) -> str:
    """The plan for people, at most 100 columns wide where the reasons allow."""
    lines = [
        f"SGLang {plan.sglang or 'not installed'}, sglang-sm120 {plan.overlay}"
        f"{' (left out: --stock)' if plan.stock else ''}, {plan.arch}{' (simulated)' if plan.simulated else ''}"
    ]
    if plan.checkpoint:
        lines.append(f"checkpoint  {plan.checkpoint.kind}{_sizes(plan.checkpoint)}")
    if plan.target:
        lines += _layer("target", plan.target)
    if plan.draft:
        lines += _layer(f"draft ({plan.draft.algorithm})", plan.draft)
    if plan.others:
        lines.append(_others(plan.others))
    if plan.memory:
        m = plan.memory
        lines.append(
            f"{'memory':<15} weights take {m.weights_gib_least} to {m.weights_gib_most} GiB of each GPU; SGLang has "
            f"{m.static_gib} of its {m.gpu_memory_gib} GiB for them and the KV cache"
        )
    lines += [f"patch           {p.name}: {p.status} ({p.reason})" for p in plan.patches]
    lines += [f"warning         {w}" for w in plan.warnings]
    lines += [f"ERROR           {e}" for e in plan.errors]
    layers = [layer for layer in (plan.target, plan.draft) if layer]
    if layers and not plan.errors and all(judge.is_known(layer) for layer in layers):
        lines.append("This launch has a kernel for every MoE layer.")
    return "\n".join(lines)


def _others(found: OtherKernels) -> str:
    draft = f", the draft's {found.draft_attention}" if found.draft_attention else ""
    summed = f", all-reduce {found.all_reduce}" if found.all_reduce else ""
    attention = f"attention {found.attention}{draft}, sparse MLA {found.sparse_mla}, indexer {found.indexer}"
    return f"{'not MoE':<15} {attention}{summed}"


def _layer(name: str, layer: LayerPlan) -> list[str]:
    return [
        f"{name:<15} {layer.kernel}: runner {layer.runner}, method {layer.method}",
        f"{'':<15} by {layer.changed_by or 'SGLang'}: {layer.reason}",
    ]
