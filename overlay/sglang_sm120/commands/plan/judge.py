"""What the child answered, judged: each layer's kernel by name, and an error where the architecture has none."""

from __future__ import annotations

from dataclasses import replace

from sglang_sm120 import gpu
from sglang_sm120.commands.plan.document import Answer, DraftPlan, Layer, LayerPlan, Plan
from sglang_sm120.moe import invariance, known_kernels, runners
from sglang_sm120.settings import RUNNER
from sglang_sm120.upstream.server_flags import Role

_SWITCH: dict[Role, tuple[str, str]] = {
    "target": ("deepseek_v4_gate", runners.TARGET_FLAG),
    "draft": ("mxfp4_nextn", runners.DRAFT_FLAG),
}


def judged(plan: Plan, answer: Answer) -> Plan:
    """The plan with the answer in it."""
    plan = replace(
        plan,
        others=answer.others,
        patches=answer.patches,
        warnings=plan.warnings + answer.warnings,
        errors=plan.errors + answer.errors,
    )
    if answer.target is not None:
        plan = _with_verdict(plan, "target", answer.target, answer.wants_invariance)
        plan = replace(plan, target=_named(answer.target))
    if answer.draft is not None:
        draft = DraftPlan(**vars(_named(answer.draft)), algorithm=answer.draft.algorithm or "")
        plan = replace(_with_verdict(plan, "draft", answer.draft, answer.wants_invariance), draft=draft)
    return plan


def _named(layer: Layer) -> LayerPlan:
    kernel = known_kernels.lookup(layer.method, layer.runner)
    return LayerPlan(
        runner=layer.runner,
        method=layer.method,
        kernel=kernel.name if kernel else f"{layer.method} on {layer.runner}",
        changed_by=layer.changed_by,
        reason=layer.reason,
        batch_invariant=layer.batch_invariant,
    )


def _with_verdict(plan: Plan, role: Role, layer: Layer, wants_invariance: bool) -> Plan:
    major = gpu.capability_of(plan.arch)[0]
    fault = known_kernels.fault(layer.method, layer.runner, major, layer.packed)
    warnings = plan.warnings
    if not is_known(layer) and not fault:
        name = _named(layer).kernel
        warnings += (f"{role}: {name} is not known to sglang-sm120; whether {plan.arch} has it is not known",)
    kernel = known_kernels.lookup(layer.method, layer.runner)
    if wants_invariance and kernel is not None and kernel.varies is not None:
        warnings += (invariance.not_invariant(role, kernel, _SWITCH[role][1]),)
    faults = ((fault,) if fault else ()) + layer.faults
    errors = tuple(f"{role}: {found}. {_remedy(plan, role)}" for found in faults)
    errors += (f"{role}: {layer.undone}",) if layer.undone else ()
    return replace(plan, warnings=warnings, errors=plan.errors + errors)


def is_known(layer: Layer | LayerPlan) -> bool:
    """Whether the table of kernels has the layer's."""
    return known_kernels.lookup(layer.method, layer.runner) is not None


def _remedy(plan: Plan, role: Role) -> str:
    patch, flag = _SWITCH[role]
    states = {state.name: state for state in plan.patches}
    hybrid = plan.checkpoint is not None and plan.checkpoint.kind == "hybrid-nvfp4"
    offered = known_kernels.offered("nvfp4" if hybrid else "mxfp4")
    works = [r for r in offered if r not in (RUNNER, "deep_gemm")]  # which some releases do not have
    # Stock SGLang asks no flag for the draft of a hybrid checkpoint.
    no_flag = role == "draft" and hybrid
    otherwise = "" if no_flag else f"; or pass {flag} {' or '.join(works)}"
    if plan.stock or not plan.patches:
        return f"The overlay changes this ({patch}, {flag}){otherwise}"
    if patch in states and states[patch].status == "not applicable":
        return f"Patch {patch} is out ({states[patch].reason}){otherwise}"
    return f"Pass another {flag}, or leave it out"
