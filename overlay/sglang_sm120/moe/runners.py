"""Which MoE runner a DeepSeek-V4 layer gets on SM120 and SM121. Pure decisions: no torch, no SGLang.

Which runner has a kernel for a format is in `known_kernels`, what keeps a launch from it in `refusals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_sm120.moe import known_kernels, refusals
from sglang_sm120.moe.launch import Launch
from sglang_sm120.moe.refusals import RouteError
from sglang_sm120.settings import DRAFT_MOE, DRAFT_RUNNERS, RUNNER, TARGET_MOE
from sglang_sm120.upstream.server_flags import Role

TARGET_FLAG = "--moe-runner-backend"
DRAFT_FLAG = "--speculative-moe-runner-backend"
_INVARIANT = "batch-invariant experts were asked for, and SGLang's choice for MXFP4 does not keep a token's bits"


@dataclass(frozen=True)
class Route:
    """A runner and why; `runner` None leaves SGLang's own choice."""

    runner: str | None
    reason: str


def route_target(launch: Launch) -> Route:
    """The target's runner.

    Raises:
        RouteError: the runner asked for has no kernel for this checkpoint on SM120.
    """
    if launch.kind == "hybrid-nvfp4":
        return _nvfp4_target(launch)
    if launch.kind == "mxfp4":
        return _mxfp4_target(launch)
    if launch.kind == "fp8":
        refusals.require_fp8(TARGET_FLAG, launch.target_runner)
    if launch.kind == "fp8" and launch.default_reads_fp4_only and launch.target_runner == "auto":
        return Route("triton", "the experts are FP8; this SGLang's default on SM120 has no kernel for them")
    return Route(None, "its experts are not FP4")


def route_draft(launch: Launch) -> Route:
    """The draft's runner, for a launch with speculative decoding. Raises RouteError as `route_target` does."""
    kind = launch.draft_kind or launch.kind
    if launch.draft_quantization == "modelopt_fp4" and kind in ("hybrid-nvfp4", "mxfp4"):
        raise RouteError(
            "--speculative-draft-model-quantization modelopt_fp4 is not what the draft is (its experts are MXFP4); "
            "leave the flag out"
        )
    inherits = launch.kind == kind and kind != "hybrid-nvfp4"
    if kind in ("hybrid-nvfp4", "mxfp4"):
        return _mxfp4_draft(launch) if inherits else _explicit_mxfp4_draft(launch)
    if kind == "fp8":
        refusals.require_fp8(DRAFT_FLAG, launch.draft_runner)
        refusals.require_fp8_stages(launch)
    if kind == "fp8" and not inherits and launch.draft_runner in (None, "auto"):
        return Route("triton", "the draft's experts are FP8 and the target's are not")
    return Route(None, "its experts are not FP4")


def _nvfp4_target(launch: Launch) -> Route:
    source, asked = _asked_target(launch)
    reason = known_kernels.why_not("nvfp4", asked) or refusals.nvfp4_obstacle(launch, asked)
    if reason is not None:
        raise RouteError(refusals.refusal(source, asked, reason, refusals.nvfp4_working(launch)))
    if launch.quantization not in (None, "fp8"):
        raise RouteError(
            f"--quantization {launch.quantization} is not what this checkpoint is (its target experts are NVFP4, the "
            "rest FP8); leave the flag out"
        )
    if asked != "auto":
        return Route(None if source == TARGET_FLAG else asked, f"{source} {asked} was asked for")
    allowed = [r for r in known_kernels.offered("nvfp4") if refusals.nvfp4_obstacle(launch, r) is None]
    return _measured(launch, "nvfp4", "target", _fixed_nvfp4_target(launch), allowed)


def _fixed_nvfp4_target(launch: Launch) -> Route:
    """The target's runner where nobody asked for one and none was measured."""
    ours = refusals.nvfp4_obstacle(launch, RUNNER)
    if ours is None:
        return Route(RUNNER, "the target's experts are NVFP4; SGLang's default for this checkpoint is SM100 only")
    cutlass, marlin = (refusals.nvfp4_obstacle(launch, runner) for runner in ("flashinfer_cutlass", "marlin"))
    if cutlass is None:
        return Route("flashinfer_cutlass", f"{RUNNER} cannot run the target: {ours}")
    why = f"{RUNNER} cannot run the target: {ours}; FlashInfer CUTLASS neither: {cutlass}"
    if launch.all_to_all != "none":
        raise RouteError(f"{why}; leave --moe-a2a-backend out, or give flashinfer")
    if marlin is not None:
        raise RouteError(f"no runner can run the target's NVFP4 experts here: {why}; Marlin neither: {marlin}")
    return Route("marlin", why)


def _mxfp4_target(launch: Launch) -> Route:
    source, asked = _asked_target(launch)
    converted = launch.converted_scales
    refusals.require_mxfp4(launch, source, asked, converted, of_target=True)
    if launch.all_to_all != "none" and (asked == RUNNER or (asked == "auto" and converted is not None)):
        reason = f"{refusals.own_dispatch('--moe-a2a-backend', launch.all_to_all)}; leave that flag out"
        raise RouteError(f"{refusals.refused(source, asked, reason)}{', or this one' if asked == RUNNER else ''}")
    if asked == "auto" and converted is not None:
        return Route(RUNNER, refusals.converted_by_loader(converted))
    if _must_be_ours(launch, asked):
        return Route(RUNNER, _INVARIANT)
    if asked != "auto" and source != TARGET_FLAG:
        return Route(asked, f"{source} {asked} was asked for")
    fixed = Route(None, "SGLang's choice for MXFP4 experts has kernels for SM120")
    if asked != "auto" or launch.all_to_all != "none":
        return fixed
    if launch.cutlass_mxfp4 and not launch.fits_cutlass:
        fixed = Route(RUNNER if launch.takes_names else "marlin", refusals.cutlass_shapes(launch))
    allowed = refusals.mxfp4_working(launch, of_target=True, besides=("deep_gemm", "humming"))
    if not launch.ours_can_follow:
        allowed = tuple(runner for runner in allowed if runner != RUNNER)
    return _measured(launch, "mxfp4", "target", fixed, allowed)


def _measured(launch: Launch, experts: known_kernels.Format, role: Role, fixed: Route, allowed: Sequence[str]) -> Route:
    """The fastest right runner of this GPU's table; `fixed` where that is the one, or where nothing was measured."""
    if launch.auto is None:
        return fixed
    if launch.invariant:
        allowed = [r for r in allowed if known_kernels.KERNELS[experts, r].varies is None]
    stock = "flashinfer_mxfp4" if launch.cutlass_mxfp4 else "marlin"  # SGLang's own choice for MXFP4 on SM120
    meant = fixed.runner or stock
    choice = launch.auto.choose(launch.layer(experts, role), role, meant, allowed)
    if choice.runner in (None, meant):
        return Route(fixed.runner, f"{fixed.reason} ({choice.says()})")
    return Route(choice.runner, choice.says())


def _must_be_ours(launch: Launch, asked: str) -> bool:
    """Whether MXFP4 experts that SGLang's default would run go to our runner, the one that keeps bits."""
    return launch.invariant and asked == "auto" and launch.all_to_all == "none"


def _asked_target(launch: Launch) -> tuple[str, str]:
    """Where the target's runner was asked for, and which; SGLang's flag wins over our variable."""
    if launch.target_runner != "auto":
        return TARGET_FLAG, launch.target_runner
    return TARGET_MOE.name, launch.target_default


def _mxfp4_draft(launch: Launch) -> Route:
    source, asked = _asked_draft(launch)
    if launch.speculative == "DSPARK" and asked not in DRAFT_RUNNERS:
        reason = "DSpark itself runs its draft on the target's runner, and no patch gives it this one"
        raise RouteError(refusals.refusal(source, asked, reason, refusals.mxfp4_working(launch)))
    refusals.require_mxfp4(launch, source, asked, launch.draft_converted_scales)
    _refuse_other_ids(launch, source, asked)
    ours = asked == "auto" and (launch.draft_converted_scales is not None or _must_be_ours(launch, asked))
    if asked == RUNNER or ours:
        refusals.require_no_dispatch(launch, None if ours else source)
    if asked == "auto" and launch.draft_converted_scales is not None:
        return Route(RUNNER, refusals.converted_by_loader(launch.draft_converted_scales))
    if ours:
        return Route(RUNNER, _INVARIANT)
    if asked != "auto" and (source != DRAFT_FLAG or launch.speculative == "DSPARK"):
        return Route(asked, f"{source} {asked} was asked for")
    return Route(None, "SGLang's choice for the draft has kernels for SM120")


def _explicit_mxfp4_draft(launch: Launch) -> Route:
    """An MXFP4 draft whose target's runner cannot be its own."""
    source, asked = _asked_draft(launch)
    if asked not in DRAFT_RUNNERS and known_kernels.why_not("mxfp4", asked) is None:
        raise RouteError(refusals.refusal(source, asked, known_kernels.NOT_MXFP4, refusals.mxfp4_working(launch)))
    refusals.require_mxfp4(launch, source, asked, launch.draft_converted_scales)
    _refuse_other_ids(launch, source, asked)
    if asked in ("auto", RUNNER):
        refusals.require_no_dispatch(launch, source if asked == RUNNER else None)
        theirs = (
            "SGLang's own choice for them is SM100 only" if launch.kind != "fp8" else "the target's runner reads FP8"
        )
        fixed = Route(RUNNER, f"the draft's experts are MXFP4; {theirs}")
        return _measured(launch, "mxfp4", "draft", fixed, _for_draft(launch)) if asked == "auto" else fixed
    return Route(asked, f"{source} {asked} was asked for")


def _for_draft(launch: Launch) -> list[str]:
    """The runners that an MXFP4 draft can have whose target's runner cannot be its own."""
    found = [RUNNER]
    if launch.draft_converted_scales is not None:
        return found
    for runner in refusals.mxfp4_working(launch):
        try:
            _refuse_other_ids(launch, DRAFT_FLAG, runner)
        except RouteError:
            continue
        if runner in DRAFT_RUNNERS and runner != RUNNER:
            found.append(runner)
    return found


def _asked_draft(launch: Launch) -> tuple[str, str]:
    """Where the draft's runner was asked for, and which; SGLang's flag wins over our variable."""
    if launch.draft_runner not in (None, "auto"):
        return DRAFT_FLAG, str(launch.draft_runner)
    return DRAFT_MOE.name, launch.draft_default


def _refuse_other_ids(launch: Launch, source: str, asked: str) -> None:
    """Raise RouteError when DSpark's draft would get expert ids that its runner does not read.

    DSpark does not swap the runner for its draft, so the draft's dispatcher leaves ids as the target's runner wants
    them; our method takes either.
    """
    if launch.speculative != "DSPARK" or launch.ep == 1 or launch.ids_per_layer or asked in ("auto", RUNNER):
        return
    target = route_target(launch).runner or launch.target_runner
    target = "flashinfer_mxfp4" if target == "auto" and launch.cutlass_mxfp4 else target
    if known_kernels.keeps_global_ids(target) == known_kernels.keeps_global_ids(asked):
        return
    reason = (
        f"with DSpark and --ep-size {launch.ep} this SGLang numbers the draft's experts as the target's {target} does"
    )
    raise RouteError(refusals.refusal(source, asked, reason, (RUNNER,)))
