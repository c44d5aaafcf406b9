"""Which MoE runner a DeepSeek-V4 layer gets on SM120 and SM121. Pure decisions: no torch, no SGLang.

Which runner has a kernel for a format is in `known_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_sm120.checkpoint.expert_formats import Kind
from sglang_sm120.moe import known_kernels
from sglang_sm120.moe.known_kernels import KERNELS, NVFP4_MULTIPLE, Format, Kernel
from sglang_sm120.moe.launch import CUTLASS_MULTIPLE, Launch
from sglang_sm120.settings import DRAFT_MOE, DRAFT_RUNNERS, RUNNER, TARGET_MOE

TARGET_FLAG = "--moe-runner-backend"
DRAFT_FLAG = "--speculative-moe-runner-backend"
_OF_SGLANG = ("flashinfer_cutlass", "marlin", "lora_marlin")  # what SGLang's own NVFP4 method runs on SM120
ATTENTION = (
    "--enable-deterministic-inference: SGLang itself refuses it for dsv4 attention, so attention may still make a "
    "token's bits depend on its batch"
)
_INVARIANT = "batch-invariant experts were asked for, and SGLang's choice for MXFP4 does not keep a token's bits"


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
        _refuse_fp8_stages(launch)
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
    ours = _nvfp4_obstacle(launch, RUNNER)
    if ours is None:
        return Route(RUNNER, "the target's experts are NVFP4; SGLang's default for this checkpoint is SM100 only")
    cutlass, marlin = (_nvfp4_obstacle(launch, runner) for runner in ("flashinfer_cutlass", "marlin"))
    if cutlass is None:
        return Route("flashinfer_cutlass", f"{RUNNER} cannot run the target: {ours}")
    why = f"{RUNNER} cannot run the target: {ours}; FlashInfer CUTLASS neither: {cutlass}"
    if marlin is not None:
        raise RouteError(f"no runner can run the target's NVFP4 experts here: {why}; Marlin neither: {marlin}")
    return Route("marlin", why)


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
    if runner == "flashinfer_cutlass" and not launch.input_scales:
        return "its activations are NVFP4 too, and the checkpoint has no input_scale for them"
    if runner in _OF_SGLANG and launch.rank_intermediate_size % NVFP4_MULTIPLE:
        return _nvfp4_width(launch)
    if runner in _OF_SGLANG and launch.converted_scales is not None:
        return _converted(launch.converted_scales)
    return None


def _nvfp4_width(launch: Launch) -> str:
    width = (
        f"it needs multiples of {NVFP4_MULTIPLE} columns of an expert, and a rank has {launch.rank_intermediate_size}"
    )
    whole = launch.moe_intermediate_size % NVFP4_MULTIPLE == 0 and launch.moe_dp == 1
    return f"{width} (--ep-size {launch.tp} leaves experts whole)" if whole else width


def _converted(dtype: str) -> str:
    return f"the checkpoint stores scales as {dtype}, which SGLang's loader converts as numbers"


def _nvfp4_working(launch: Launch) -> tuple[str, ...]:
    """The runners to offer that this SGLang's flags have, and that the launch lets run the target."""
    missing = set() if launch.takes_names else {RUNNER}
    offered = known_kernels.offered("nvfp4")
    return tuple(r for r in offered if r not in missing and _nvfp4_obstacle(launch, r) is None)


def _mxfp4_target(launch: Launch) -> Route:
    source, asked = _asked_target(launch)
    _refuse_mxfp4(launch, source, asked, launch.converted_scales, of_target=True)
    if asked == "auto" and launch.converted_scales is not None:
        return Route(RUNNER, _converted(launch.converted_scales))
    if _must_be_ours(launch, asked):
        return Route(RUNNER, _INVARIANT)
    if asked == "auto" and launch.all_to_all == "none" and launch.cutlass_mxfp4 and not launch.fits_cutlass:
        return Route(RUNNER if launch.takes_names else "marlin", _cutlass_shapes(launch))
    if asked != "auto" and source != TARGET_FLAG:
        return Route(asked, f"{source} {asked} was asked for")
    return Route(None, "SGLang's choice for MXFP4 experts has kernels for SM120")


def _must_be_ours(launch: Launch, asked: str) -> bool:
    """Whether MXFP4 experts that SGLang's default would run go to our runner, the one that keeps bits."""
    return launch.invariant and asked == "auto" and launch.all_to_all == "none"


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
        kernel = None if route is None or experts is None else KERNELS.get((experts, route.runner or asked[role]))
        if kernel is not None and kernel.varies is not None:
            found.append(not_invariant(role, kernel, flag))
    return found


def not_invariant(role: str, kernel: Kernel, flag: str) -> str:
    """The line about a kernel that does not keep a token's bits."""
    return (
        f"{role}: batch-invariant experts were asked for, and {kernel.name} does not keep a token's bits: "
        f"{kernel.varies}; leave {flag} out, or pass {RUNNER}"
    )


def _asked_target(launch: Launch) -> tuple[str, str]:
    """Where the target's runner was asked for, and which; SGLang's flag wins over our variable."""
    if launch.target_runner != "auto":
        return TARGET_FLAG, launch.target_runner
    return TARGET_MOE.name, launch.target_default


def _mxfp4_draft(launch: Launch) -> Route:
    source, asked = _asked_draft(launch)
    if launch.speculative == "DSPARK" and asked not in DRAFT_RUNNERS:
        reason = "DSpark itself runs its draft on the target's runner, and no patch gives it this one"
        raise RouteError(_refusal(source, asked, reason, _mxfp4_working(launch)))
    _refuse_mxfp4(launch, source, asked, launch.draft_converted_scales)
    _refuse_other_ids(launch, source, asked)
    if asked == "auto" and launch.draft_converted_scales is not None:
        return Route(RUNNER, _converted(launch.draft_converted_scales))
    if _must_be_ours(launch, asked):
        return Route(RUNNER, _INVARIANT)
    if asked != "auto" and (source != DRAFT_FLAG or launch.speculative == "DSPARK"):
        return Route(asked, f"{source} {asked} was asked for")
    return Route(None, "SGLang's choice for the draft has kernels for SM120")


def _explicit_mxfp4_draft(launch: Launch) -> Route:
    """An MXFP4 draft whose target's runner cannot be its own."""
    source, asked = _asked_draft(launch)
    if asked not in DRAFT_RUNNERS and known_kernels.why_not("mxfp4", asked) is None:
        raise RouteError(_refusal(source, asked, known_kernels.NOT_MXFP4, _mxfp4_working(launch)))
    _refuse_mxfp4(launch, source, asked, launch.draft_converted_scales)
    _refuse_other_ids(launch, source, asked)
    if asked in ("auto", RUNNER):
        theirs = (
            "SGLang's own choice for them is SM100 only" if launch.kind != "fp8" else "the target's runner reads FP8"
        )
        return Route(RUNNER, f"the draft's experts are MXFP4; {theirs}")
    return Route(asked, f"{source} {asked} was asked for")


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


def _refuse_fp8_stages(launch: Launch) -> None:
    """Raise RouteError where DSpark would run an FP8 draft on the runner of a target that is not FP8."""
    if launch.speculative == "DSPARK" and launch.kind != "fp8":
        raise RouteError(
            f"the DSpark draft's experts are FP8 and the target's {launch.kind}, and SGLang runs both on one runner; "
            "leave --speculative-algorithm out, or take a draft of MXFP4"
        )


def _refuse_mxfp4(launch: Launch, source: str, asked: str, converted: str | None, *, of_target: bool = False) -> None:
    """Raise RouteError when the runner asked for cannot run MXFP4 experts on SM120, with scales of that type."""
    reason = known_kernels.why_not("mxfp4", asked)
    if asked == "flashinfer_mxfp4" and not launch.cutlass_mxfp4:
        reason = "this SGLang's FlashInfer MXFP4 kernels are built for SM90 and SM100 only"
    elif asked == "flashinfer_mxfp4" and not launch.fits_cutlass:
        reason = _cutlass_shapes(launch)
    elif asked == "deep_gemm" and not launch.deep_gemm_fp4:
        reason = "this SGLang's DeepGEMM reads packed FP4 experts on SM100 only"
    elif asked not in ("auto", RUNNER) and converted is not None:
        reason = _converted(converted)
    if reason is not None:
        working = _mxfp4_working(launch, of_target) if converted is None else (RUNNER,)
        raise RouteError(_refusal(source, asked, reason, working))


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


def _mxfp4_working(launch: Launch, of_target: bool = False) -> tuple[str, ...]:
    """The runners to offer that this SGLang's flags and kernels have at this shape; DeepGEMM for targets alone."""
    missing = set() if launch.takes_names else {RUNNER}
    if not launch.cutlass_mxfp4 or not launch.fits_cutlass:
        missing.add("flashinfer_mxfp4")
    if not launch.deep_gemm_fp4 or not of_target:
        missing.add("deep_gemm")
    return tuple(runner for runner in known_kernels.offered("mxfp4") if runner not in missing)


def _cutlass_shapes(launch: Launch) -> str:
    return (
        f"FlashInfer's MXFP4 CUTLASS kernel needs multiples of {CUTLASS_MULTIPLE}; a rank has hidden size "
        f"{launch.hidden_size} and intermediate size {launch.rank_intermediate_size}"
    )


def _refusal(flag: str, value: str | None, reason: str, working: tuple[str, ...]) -> str:
    return f"{flag} {value} cannot run here on SM120: {reason}. These can: {', '.join(working)}; or leave the flag out"
