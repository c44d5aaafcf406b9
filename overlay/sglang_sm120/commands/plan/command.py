"""`sglang-sm120 plan`: which MoE kernels a launch would run, decided by the installed SGLang.

The checkpoint's facts are read here; everything else is asked of SGLang in a child process.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

from sglang_sm120 import __version__, gpu, settings
from sglang_sm120.checkpoint import inspection, memory
from sglang_sm120.checkpoint.inspection import Checkpoint, CheckpointError, Inspected
from sglang_sm120.commands.findings import toolchain
from sglang_sm120.commands.plan import judge
from sglang_sm120.commands.plan.ask import NoAnswerError, ask
from sglang_sm120.commands.plan.document import LayerPlan, OtherKernels, Plan, Request, Sizes
from sglang_sm120.commands.plan.simulate import SIMULATED
from sglang_sm120.moe import launch_files
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
        found = inspection.read(model)
    except CheckpointError as error:
        return replace(plan, errors=(str(error),))
    facts = found.checkpoint
    plan = replace(plan, checkpoint=facts, errors=tuple(f"{model}: {problem}" for problem in facts.problems))
    if not facts.is_deepseek_v4 and not plan.errors and plan.sglang is not None:
        plan = replace(plan, warnings=(_left_alone(model, found),))
        if found.exporter is None:
            return plan
    unread = _is_dummy(flags)
    problems = () if unread else plan.errors
    plan = replace(plan, errors=(() if stock else problems) or _usage(plan, flags))
    if plan.errors:
        return plan
    plan = _asked(plan, model, flags, memory_gib, found)
    return replace(plan, errors=(*problems, *plan.errors)) if stock else plan


def _is_dummy(flags: list[str]) -> bool:
    """Whether the flags ask for weights that no file holds, so that none is read."""
    given = " ".join(flags).replace("=", " ").split()
    return ("--load-format", "dummy") in itertools.pairwise(given)


def _left_alone(model: Path, found: Inspected) -> str:
    """What a checkpoint is that no patch is about."""
    if found.exporter is None:
        return f"{model / 'config.json'}: not a DeepSeek-V4 checkpoint; the overlay leaves it alone"
    return (
        f"{model / 'config.json'}: DeepSeek-V4 with experts in a format of {found.exporter} that the overlay does "
        "not patch; what SGLang makes of it is below. NVIDIA's hybrid layout, MXFP4 and block FP8 are patched"
    )


def _usage(plan: Plan, flags: list[str]) -> tuple[str, ...]:
    """What keeps SGLang from being asked at all."""
    if plan.sglang is None:
        return ("SGLang is not installed beside sglang-sm120; install it first: pip install sglang",)
    if any(flag.split("=")[0] in ("--model-path", "--model") for flag in flags):
        return ("--model-path after -- names a second model; plan takes the one of --model",)
    return ()


def _asked(plan: Plan, model: Path, flags: list[str], memory_gib: int, found: Inspected) -> Plan:
    """The plan with what SGLang said of the launch."""
    assumed, filtered = os.environ.get(settings.ASSUME.name), os.environ.get("SGLANG_PLUGINS")
    if assumed and assumed != plan.arch:
        said = f"{settings.ASSUME.name}={assumed} routes MoE layers, whatever --arch {plan.arch} says"
        plan = replace(plan, warnings=(*plan.warnings, said))
    request = Request(
        model=str(model), flags=tuple(flags), arch=plan.arch, memory_gib=memory_gib, head=found.survey.head
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
    return plan if answer.sizes is None else _with_files(plan, model, memory_gib, answer.sizes, found)


def _with_files(plan: Plan, model: Path, memory_gib: int, sizes: Sizes, found: Inspected) -> Plan:
    """The plan with what the checkpoints of the launch take of each GPU."""
    path = sizes.speculative_draft_model_path
    try:
        files = launch_files.of_draft(found, str(model), sizes.speculative_algorithm, path)
    except CheckpointError as error:
        return plan if plan.errors else replace(plan, errors=(str(error),))
    weights = memory.with_draft(found.weights, files.draft.weights if files.draft else None)
    return plan if weights is None else _weighed(plan, memory_gib, sizes, weights, found.checkpoint.experts)


def _weighed(plan: Plan, memory_gib: int, sizes: Sizes, weights: memory.Weights, experts: int | None) -> Plan:
    """Weights of each GPU against its memory; more than it has is an error."""
    found = memory.budget(
        weights,
        memory_gib,
        sizes.tp_size,
        sizes.pp_size,
        bool(sizes.speculative_algorithm),
        sizes.mem_fraction_static or 1.0,  # unset where SGLang leaves it to the GPU that it finds
        ep=sizes.ep_size,
        moe_dp=sizes.moe_dp_size or 1,
        copies=1 + (sizes.ep_num_redundant_experts or 0) / (experts or 1),
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
    kept = ", batch-invariant" if layer.batch_invariant else ""
    return [
        f"{name:<15} {layer.kernel}{kept}: runner {layer.runner}, method {layer.method}",
        f"{'':<15} by {layer.changed_by or 'SGLang'}: {layer.reason}",
    ]
