"""Why a launch keeps a runner from a DeepSeek-V4 layer on SM120, and the message that says so. Pure."""

from __future__ import annotations

from sglang_sm120.moe import known_kernels
from sglang_sm120.moe.known_kernels import NVFP4_MULTIPLE
from sglang_sm120.moe.launch import CUTLASS_MULTIPLE, Launch
from sglang_sm120.settings import RUNNER

_OF_SGLANG = ("flashinfer_cutlass", "marlin", "lora_marlin")  # what SGLang's own NVFP4 method runs on SM120
# Runner -> the all-to-alls whose dispatch it reads, by SGLang's register_fused_func; `none` alone for the others.
_NVFP4_DISPATCH = {"flashinfer_cutlass": ("none", "flashinfer")}


class RouteError(ValueError):
    """No kernel for what was asked; the message names the flag, its value, the reason and what works."""


def nvfp4_obstacle(launch: Launch, runner: str) -> str | None:
    """Why a launch keeps a runner with kernels for NVFP4 from running the target; None if it does not."""
    if runner == RUNNER and launch.unreached is not None:
        return launch.unreached
    if runner != "auto" and launch.all_to_all not in _NVFP4_DISPATCH.get(runner, ("none",)):
        return own_dispatch("--moe-a2a-backend", launch.all_to_all, runner)
    if runner == "flashinfer_cutlass" and launch.ep not in (1, launch.tp):
        return f"FlashInfer CUTLASS needs --ep-size 1 or {launch.tp} (it is {launch.ep})"
    if runner == "flashinfer_cutlass" and launch.quantization is not None:
        return f"SGLang refuses FlashInfer CUTLASS with --quantization {launch.quantization}, which is redundant here"
    if runner == "flashinfer_cutlass" and not launch.input_scales:
        return "its activations are NVFP4 too, and the checkpoint has no input_scale for them"
    if runner in _OF_SGLANG and launch.rank_intermediate_size % NVFP4_MULTIPLE:
        return _nvfp4_width(launch)
    if runner in _OF_SGLANG and launch.converted_scales is not None:
        return converted_by_loader(launch.converted_scales)
    return None


def _nvfp4_width(launch: Launch) -> str:
    width = (
        f"it needs multiples of {NVFP4_MULTIPLE} columns of an expert, and a rank has {launch.rank_intermediate_size}"
    )
    whole = launch.moe_intermediate_size % NVFP4_MULTIPLE == 0 and launch.moe_dp == 1
    return f"{width} (--ep-size {launch.tp} leaves experts whole)" if whole else width


def nvfp4_working(launch: Launch) -> tuple[str, ...]:
    """The runners to offer that this SGLang's flags have, and that the launch lets run the target."""
    missing = set() if launch.takes_names else {RUNNER}
    offered = known_kernels.offered("nvfp4")
    return tuple(r for r in offered if r not in missing and nvfp4_obstacle(launch, r) is None)


def mxfp4_working(launch: Launch, of_target: bool = False, besides: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The runners that this SGLang's flags and kernels have at this shape: those to offer, and those named besides.

    DeepGEMM is for targets alone.
    """
    missing = set() if launch.takes_names else {RUNNER}
    if not launch.cutlass_mxfp4 or not launch.fits_cutlass:
        missing.add("flashinfer_mxfp4")
    if not launch.deep_gemm_fp4 or not of_target:
        missing.add("deep_gemm")
    return tuple(
        runner for runner in dict.fromkeys((*known_kernels.offered("mxfp4"), *besides)) if runner not in missing
    )


def require_mxfp4(launch: Launch, source: str, asked: str, converted: str | None, *, of_target: bool = False) -> None:
    """Raise RouteError when the runner asked for cannot run MXFP4 experts on SM120, with scales of that type."""
    reason = known_kernels.why_not("mxfp4", asked)
    if asked == "flashinfer_mxfp4" and not launch.cutlass_mxfp4:
        reason = "this SGLang's FlashInfer MXFP4 kernels are built for SM90 and SM100 only"
    elif asked == "flashinfer_mxfp4" and not launch.fits_cutlass:
        reason = cutlass_shapes(launch)
    elif asked == "deep_gemm" and not launch.deep_gemm_fp4:
        reason = "this SGLang's DeepGEMM reads packed FP4 experts on SM100 only"
    elif asked not in ("auto", RUNNER) and converted is not None:
        reason = converted_by_loader(converted)
    if reason is not None:
        working = mxfp4_working(launch, of_target) if converted is None else (RUNNER,)
        raise RouteError(refusal(source, asked, reason, working))


def require_fp8(source: str, asked: str | None) -> None:
    """Raise RouteError when the runner asked for cannot run FP8 experts on SM120."""
    reason = known_kernels.why_not("fp8", asked)
    if reason is not None:
        raise RouteError(refusal(source, asked, reason, known_kernels.offered("fp8")))


def require_fp8_stages(launch: Launch) -> None:
    """Raise RouteError where DSpark would run an FP8 draft on the runner of a target that is not FP8."""
    if launch.speculative == "DSPARK" and launch.kind != "fp8":
        raise RouteError(
            f"the DSpark draft's experts are FP8 and the target's {launch.kind}, and SGLang runs both on one runner; "
            "leave --speculative-algorithm out, or take a draft of MXFP4"
        )


def require_no_dispatch(launch: Launch, source: str | None) -> None:
    """Raise RouteError when our draft's tokens would come by an all-to-all; `source` asked for ours, None if nobody."""
    dspark = launch.speculative == "DSPARK"
    inherited = dspark or launch.draft_all_to_all is None
    flag = "--moe-a2a-backend" if inherited else "--speculative-moe-a2a-backend"
    value = launch.all_to_all if inherited else str(launch.draft_all_to_all)
    if value == "none":
        return
    cure = "leave that flag out (DSpark's draft follows it)" if dspark else "add --speculative-moe-a2a-backend none"
    reason = f"{own_dispatch(flag, value)}; {cure}"
    if source is not None:
        raise RouteError(refused(source, RUNNER, reason))
    raise RouteError(f"the draft's MXFP4 experts run on {RUNNER} here, and {reason}")


def own_dispatch(flag: str, value: str, runner: str = RUNNER) -> str:
    return f"{flag} {value} brings a dispatch of its own, which {runner} does not read"


def converted_by_loader(dtype: str) -> str:
    return f"the checkpoint stores scales as {dtype}, which SGLang's loader converts as numbers"


def cutlass_shapes(launch: Launch) -> str:
    return (
        f"FlashInfer's MXFP4 CUTLASS kernel needs multiples of {CUTLASS_MULTIPLE}; a rank has hidden size "
        f"{launch.hidden_size} and intermediate size {launch.rank_intermediate_size}"
    )


def refusal(flag: str, value: str | None, reason: str, working: tuple[str, ...]) -> str:
    return f"{refused(flag, value, reason)}. These can: {', '.join(working)}; or leave the flag out"


def refused(flag: str, value: str | None, reason: str) -> str:
    return f"{flag} {value} cannot run here on SM120: {reason}"
