"""Which MoE runner a DeepSeek-V4 layer gets on SM120 and SM121. Pure decisions: no torch, no SGLang.

Which runner has a kernel for a format is in `known_kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_sm120.moe import known_kernels
from sglang_sm120.moe.launch import CUTLASS_MULTIPLE, Launch
from sglang_sm120.settings import DRAFT_MOE, DRAFT_RUNNERS, RUNNER, TARGET_MOE
from sglang_sm120.upstream.server_flags import Role

TARGET_FLAG = "--moe-runner-backend"
DRAFT_FLAG = "--speculative-moe-runner-backend"


class RouteError(ValueError):
    """No kernel for what was asked; the message names the flag, its value, the reason and what works."""


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
        _refuse_fp8(TARGET_FLAG, launch.target_runner)
    if launch.kind == "fp8" and launch.default_reads_fp4_only and launch.target_runner == "auto":
        return Route("triton", "the experts are FP8; this SGLang's default on SM120 has no kernel for them")
    return Route(None, "its experts are not FP4")


def route_draft(launch: Launch) -> Route:
    """The draft's runner, for a launch with speculative decoding. Raises RouteError as `route_target` does."""
    kind = launch.draft_kind or launch.kind
    inherits = launch.kind == kind and kind != "hybrid-nvfp4"
    if kind in ("hybrid-nvfp4", "mxfp4"):
        return _mxfp4_draft(launch) if inherits else _explicit_mxfp4_draft(launch)
    if kind == "fp8":
        _refuse_fp8(DRAFT_FLAG, launch.draft_runner)
    if kind == "fp8" and not inherits and launch.draft_runner in (None, "auto"):
        return Route("triton", "the draft's experts are FP8 and the target's are not")
    return Route(None, "its experts are not FP4")


def _nvfp4_target(launch: Launch) -> Route:
    source, asked = _asked_target(launch)
    reason = known_kernels.why_not("nvfp4", asked) or _nvfp4_obstacle(launch, asked)
    if reason is not None:
        raise RouteError(_refusal(source, asked, reason, _nvfp4_working(launch)))
    if launch.quantization not in (None, "fp8"):
        raise RouteError(
            f"--quantization {launch.quantization} is not what this checkpoint is (its target experts are NVFP4, the "
            "rest FP8); leave the flag out"
        )
    if asked != "auto":
        return Route(None if source == TARGET_FLAG else asked, f"{source} {asked} was asked for")
    allowed = [r for r in known_kernels.offered("nvfp4") if _nvfp4_obstacle(launch, r) is None]
    return _measured(launch, "nvfp4", "target", _fixed_nvfp4_target(launch), allowed)


def _fixed_nvfp4_target(launch: Launch) -> Route:
    """The target's runner where nobody asked for one and none was measured."""
    ours = _nvfp4_obstacle(launch, RUNNER)
    if ours is None:
        return Route(RUNNER, "the target's experts are NVFP4; SGLang's default for this checkpoint is SM100 only")
    cutlass = _nvfp4_obstacle(launch, "flashinfer_cutlass")
    if cutlass is None:
        return Route("flashinfer_cutlass", f"{RUNNER} cannot run the target: {ours}")
    return Route("marlin", f"{RUNNER} cannot run the target: {ours}; FlashInfer CUTLASS neither: {cutlass}")


def _nvfp4_obstacle(launch: Launch, runner: str) -> str | None:
    """Why a launch keeps a runner with kernels for NVFP4 from running the target; None if it does not."""
    if runner == RUNNER and launch.unreached is not None:
        return launch.unreached
    if runner == RUNNER and launch.all_to_all != "none":
        return f"--moe-a2a-backend {launch.all_to_all} brings a dispatch of its own"
    if runner == "flashinfer_cutlass" and launch.ep not in (1, launch.tp):
        return f"FlashInfer CUTLASS needs --ep-size 1 or {launch.tp} (it is {launch.ep})"
    if runner == "flashinfer_cutlass" and launch.quantization is not None:
        return f"SGLang refuses FlashInfer CUTLASS with --quantization {launch.quantization}, which is redundant here"
    return None


def _nvfp4_working(launch: Launch) -> tuple[str, ...]:
    """The runners to offer that this SGLang's flags have, and that the launch lets run the target."""
    missing = set() if launch.takes_names else {RUNNER}
    offered = known_kernels.offered("nvfp4")
    return tuple(r for r in offered if r not in missing and _nvfp4_obstacle(launch, r) is None)


def _mxfp4_target(launch: Launch) -> Route:
    source, asked = _asked_target(launch)
    _refuse_mxfp4(launch, source, asked)
    if asked != "auto" and source != TARGET_FLAG:
        return Route(asked, f"{source} {asked} was asked for")
    fixed = Route(None, "SGLang's choice for MXFP4 experts has kernels for SM120")
    if asked != "auto" or launch.all_to_all != "none":
        return fixed
    if launch.cutlass_mxfp4 and not launch.fits_cutlass:
        fixed = Route(RUNNER if launch.takes_names else "marlin", _cutlass_shapes(launch))
    return _measured(launch, "mxfp4", "target", fixed, _mxfp4_working(launch, "deep_gemm", "humming"))


def _measured(launch: Launch, experts: known_kernels.Format, role: Role, fixed: Route, allowed: Sequence[str]) -> Route:
    """The fastest right runner of this GPU's table; `fixed` where that is the one, or where nothing was measured."""
    if launch.auto is None:
        return fixed
    stock = "flashinfer_mxfp4" if launch.cutlass_mxfp4 else "marlin"  # SGLang's own choice for MXFP4 on SM120
    meant = fixed.runner or stock
    choice = launch.auto.choose(launch.layer(experts, role), role, meant, allowed)
    if choice.runner in (None, meant):
        return Route(fixed.runner, f"{fixed.reason} ({choice.says()})")
    return Route(choice.runner, choice.says())


def _asked_target(launch: Launch) -> tuple[str, str]:
    """Where the target's runner was asked for, and which; SGLang's flag wins over our variable."""
    if launch.target_runner != "auto":
        return TARGET_FLAG, launch.target_runner
    return TARGET_MOE.name, launch.target_default


def _mxfp4_draft(launch: Launch) -> Route:
    source, asked = _asked_draft(launch)
    if launch.speculative == "DSPARK" and asked not in ("auto", *known_kernels.offered("mxfp4")):
        reason = "DSpark itself runs its draft on the target's runner, and no patch gives it this one"
        raise RouteError(_refusal(source, asked, reason, _mxfp4_working(launch)))
    _refuse_mxfp4(launch, source, asked)
    _refuse_other_ids(launch, source, asked)
    if asked != "auto" and (source != DRAFT_FLAG or launch.speculative == "DSPARK"):
        return Route(asked, f"{source} {asked} was asked for")
    return Route(None, "SGLang's choice for the draft has kernels for SM120")


def _explicit_mxfp4_draft(launch: Launch) -> Route:
    """An MXFP4 draft whose target's runner cannot be its own."""
    source, asked = _asked_draft(launch)
    if asked not in DRAFT_RUNNERS and known_kernels.why_not("mxfp4", asked) is None:
        raise RouteError(_refusal(source, asked, known_kernels.NOT_MXFP4, _mxfp4_working(launch)))
    _refuse_mxfp4(launch, source, asked)
    _refuse_other_ids(launch, source, asked)
    if asked in ("auto", RUNNER):
        fixed = Route(RUNNER, "the draft's experts are MXFP4; SGLang's own choice for them is SM100 only")
        return _measured(launch, "mxfp4", "draft", fixed, _for_draft(launch)) if asked == "auto" else fixed
    return Route(asked, f"{source} {asked} was asked for")


def _for_draft(launch: Launch) -> list[str]:
    """The runners that an MXFP4 draft can have whose target's runner cannot be its own."""
    found = [RUNNER]
    for runner in _mxfp4_working(launch):
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


def _refuse_fp8(source: str, asked: str | None) -> None:
    """Raise RouteError when the runner asked for cannot run FP8 experts on SM120."""
    reason = known_kernels.why_not("fp8", asked)
    if reason is not None:
        raise RouteError(_refusal(source, asked, reason, known_kernels.offered("fp8")))


def _refuse_mxfp4(launch: Launch, source: str, asked: str) -> None:
    """Raise RouteError when the runner asked for cannot run MXFP4 experts on SM120."""
    reason = known_kernels.why_not("mxfp4", asked)
    if asked == "flashinfer_mxfp4" and not launch.cutlass_mxfp4:
        reason = "this SGLang's FlashInfer MXFP4 kernels are built for SM90 and SM100 only"
    elif asked == "flashinfer_mxfp4" and not launch.fits_cutlass:
        reason = _cutlass_shapes(launch)
    if reason is not None:
        raise RouteError(_refusal(source, asked, reason, _mxfp4_working(launch)))


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
    raise RouteError(_refusal(source, asked, reason, (RUNNER,)))


def _mxfp4_working(launch: Launch, *besides: str) -> tuple[str, ...]:
    """The runners that this SGLang's flags and kernels have at this shape: those to offer, and those named besides."""
    missing = set() if launch.takes_names else {RUNNER}
    if not launch.cutlass_mxfp4 or not launch.fits_cutlass:
        missing.add("flashinfer_mxfp4")
    return tuple(runner for runner in (*known_kernels.offered("mxfp4"), *besides) if runner not in missing)


def _cutlass_shapes(launch: Launch) -> str:
    return (
        f"FlashInfer's MXFP4 CUTLASS kernel needs multiples of {CUTLASS_MULTIPLE}; a rank has hidden size "
        f"{launch.hidden_size} and intermediate size {launch.rank_intermediate_size}"
    )


def _refusal(flag: str, value: str | None, reason: str, working: tuple[str, ...]) -> str:
    return f"{flag} {value} cannot run here on SM120: {reason}. These can: {', '.join(working)}; or leave the flag out"
