"""Batch invariance: which kernels do not keep a token's bits where a launch asks for them. Pure, as `runners` is."""

from __future__ import annotations

from sglang_sm120.checkpoint.expert_formats import Kind
from sglang_sm120.moe import refusals
from sglang_sm120.moe.known_kernels import KERNELS, Format, Kernel
from sglang_sm120.moe.launch import Launch
from sglang_sm120.moe.runners import DRAFT_FLAG, TARGET_FLAG, Route
from sglang_sm120.settings import RUNNER

ATTENTION = (
    "--enable-deterministic-inference: SGLang itself refuses it for dsv4 attention, so attention may still make a "
    "token's bits depend on its batch"
)


def varying(launch: Launch, target: Route, draft: Route | None) -> list[str]:
    """A line for each kind of layer whose kernel does not keep a token's bits, where a launch asks for that.

    Args:
        launch: the launch.
        target, draft: what was decided; None without a draft.
    """
    if not launch.invariant:
        return []
    kinds = {"target": launch.kind, "draft": launch.draft_kind or launch.kind}
    formats: dict[Kind, Format] = {"hybrid-nvfp4": "nvfp4", "mxfp4": "mxfp4", "fp8": "fp8"}
    asked = {"target": launch.target_runner, "draft": launch.draft_runner or launch.target_runner}
    found = []
    for role, route, flag in (("target", target, TARGET_FLAG), ("draft", draft, DRAFT_FLAG)):
        experts = formats.get(kinds[role])
        experts = "mxfp4" if role == "draft" and experts == "nvfp4" else experts
        dispatched = launch.all_to_all != "none" and experts == "mxfp4"
        if dispatched and route is not None and (route.runner or asked[role]) == "auto":
            found.append(_left_to_sglang(role, launch))
            continue
        kernel = None if route is None or experts is None else KERNELS.get((experts, route.runner or asked[role]))
        if kernel is not None and kernel.varies is not None:
            found.append(not_invariant(role, kernel, flag))
    return found


def _left_to_sglang(role: str, launch: Launch) -> str:
    """The line about MXFP4 experts that our runner would run, were their tokens not dispatched elsewhere."""
    reason = refusals.own_dispatch("--moe-a2a-backend", launch.all_to_all)
    return f"{role}: batch-invariant experts were asked for, and {reason}; leave that flag out"


def not_invariant(role: str, kernel: Kernel, flag: str) -> str:
    """The line about a kernel that does not keep a token's bits."""
    return (
        f"{role}: batch-invariant experts were asked for, and {kernel.name} does not keep a token's bits: "
        f"{kernel.varies}; leave {flag} out, or pass {RUNNER}"
    )
