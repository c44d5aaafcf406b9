"""Hand DeepSeek-V4's clamp to FlashInfer's NVFP4 CUTLASS kernel, which SGLang 0.5.14 to 0.5.20 leave out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any

from sglang_sm120.moe import stock
from sglang_sm120.patching import on_import, replace
from sglang_sm120.patching.records import Patch, Status
from sglang_sm120.settings import Settings
from sglang_sm120.upstream import contracts, releases
from sglang_sm120.upstream.contracts import Target

NAME = "cutlass_swiglu_limit"
_QUANT = "sglang.srt.layers.quantization.modelopt_quant"
_RUNNER = "sglang.srt.layers.moe.moe_runner.flashinfer_cutlass"
_CLASS = "ModelOptNvFp4FusedMoEMethod"
_GETTER = "_flashinfer_cutlass_fused_moe"
_ATTRIBUTE = "_sm120_swiglu"
# What the kernel computes per expert, on dequantised values: g · sigmoid(alpha · g) · (clamp(up, ±limit) + beta) with
# g = min(gate, limit). Alpha 1 and beta 0 leave silu(g) · clamp(up).
_ALPHA, _BETA = 1.0, 0.0
_clamp: ContextVar[Mapping[str, Any] | None] = ContextVar("sglang_sm120_clamp", default=None)


def install(_settings: Settings) -> str:
    """Wrap the method that prepares the layer, the one that runs it, and the place that names the kernel."""
    on_import.when_imported(_QUANT, _wrap_method)
    if contracts.find(_RUNNER, _GETTER) is not None:
        on_import.when_imported(_RUNNER, _wrap_getter)
    else:
        on_import.when_imported(_QUANT, _wrap_kernel)  # SGLang 0.5.14 calls the kernel from the method itself
    return f"{_CLASS} on flashinfer_cutlass passes alpha 1, beta 0 and the checkpoint's limit"


def _wrap_method(module: ModuleType) -> None:
    cls = getattr(module, _CLASS)
    replace.replace(cls, "process_weights_after_loading", NAME, _preparing)
    replace.replace(cls, "apply", NAME, _running)


def _preparing(original: FunctionType) -> Callable[..., Any]:
    def process_weights_after_loading(self: Any, layer: Any) -> None:
        original(self, layer)
        if _is_clamped(self):
            prepare(self, layer)

    return process_weights_after_loading


def _running(original: FunctionType) -> Callable[..., Any]:
    def apply(self: Any, layer: Any, dispatch_output: Any) -> Any:
        if not _is_clamped(self):
            return original(self, layer, dispatch_output)
        token = _clamp.set(getattr(self, _ATTRIBUTE))
        try:
            return original(self, layer, dispatch_output)
        finally:
            _clamp.reset(token)

    return apply


def _is_clamped(method: Any) -> bool:
    return bool(method.enable_flashinfer_cutlass_moe and method.moe_runner_config.swiglu_limit is not None)


def prepare(method: Any, layer: Any) -> None:
    """Make the three per-expert tensors beside the weights, before any CUDA graph; fill them again after an update.

    Raises:
        SystemExit: the installed FlashInfer's kernel has no such arguments.
    """
    import torch
    from flashinfer.fused_moe import cutlass_fused_moe

    if "swiglu_limit" not in inspect.signature(cutlass_fused_moe).parameters:
        raise SystemExit(
            "sglang-sm120: the installed FlashInfer's cutlass_fused_moe takes no swiglu_limit, so NVFP4 experts would "
            "run without their clamp; install the flashinfer-python that this SGLang pins, or pass "
            "--moe-runner-backend marlin"
        )
    experts, device = layer.w13_weight.shape[0], layer.w13_weight.device
    values = {"alpha": _ALPHA, "beta": _BETA, "limit": float(method.moe_runner_config.swiglu_limit)}
    present = getattr(method, _ATTRIBUTE, None)
    if present is None:
        present = {f"swiglu_{n}": torch.empty(experts, dtype=torch.float32, device=device) for n in values}
        setattr(method, _ATTRIBUTE, present)
    for name, value in values.items():
        present[f"swiglu_{name}"].fill_(value)


def _wrap_getter(module: ModuleType) -> None:
    def wrap(original: FunctionType) -> Callable[..., Any]:
        def _flashinfer_cutlass_fused_moe() -> tuple[Any, Any]:
            kernel, activation_type = original()
            clamp = _clamp.get()
            return (kernel if clamp is None else functools.partial(kernel, **clamp)), activation_type

        return _flashinfer_cutlass_fused_moe

    replace.replace(module, _GETTER, NAME, wrap)


def _wrap_kernel(module: ModuleType) -> None:
    kernel: Any = module.__dict__.get("flashinfer_cutlass_fused_moe")
    if getattr(kernel, replace.MARK, None) == NAME:
        return
    if getattr(kernel, "__name__", None) != "cutlass_fused_moe":
        raise replace.PatchError(
            f"patch {NAME}: {_QUANT}.flashinfer_cutlass_fused_moe is {kernel!r}; expected FlashInfer's "
            f"cutlass_fused_moe. Is flashinfer-python installed? Or leave it out with SGLANG_SM120_DISABLE={NAME}"
        )

    @functools.wraps(kernel)
    def cutlass_fused_moe(*args: Any, **kwargs: Any) -> Any:
        return kernel(*args, **kwargs, **(_clamp.get() or {}))

    name = "flashinfer_cutlass_fused_moe"
    replace.record(module, name, NAME, replace.put(module, name, NAME, cutlass_fused_moe))


PATCH = Patch(
    name=NAME,
    summary="hybrid FP8+NVFP4 targets on FlashInfer CUTLASS keep DeepSeek-V4's clamp at 10 (SGLang 0.5.14 to 0.5.20)",
    symptom=(
        "none that is visible: `cutlass_fused_moe` is called without `swiglu_limit`, gate and up are not clamped, and "
        "the answers are those of another model"
    ),
    targets=(
        Target(
            _QUANT,
            f"{_CLASS}.apply",
            releases.spans(
                {
                    "0.5.14": "1ba4df3ef2a8",
                    "0.5.15": "2c97cfcaf78c",
                    "0.5.16": "404d23b72601",
                    "0.5.17": "1d3e83abe526",
                    "0.5.18": "edb1b442820a",
                    "0.5.19": "c7436a57b0f1",
                    "0.5.20": "7bc863c9eb8f",
                    "0.5.21": "71863dce4037",
                    "0.5.22": "80c87abfc431",
                    "0.5.23": "5b32ca33ee53",
                }
            ),
        ),
        Target(
            _QUANT,
            f"{_CLASS}.process_weights_after_loading",
            releases.spans(
                {
                    "0.5.14": "7aa5c843be8a",
                    "0.5.16": "61ebf39e4e81",
                    "0.5.17": "b10c8ee44248",
                    "0.5.18": "26ba15f1469b",
                    "0.5.19": "d03f9dacbf95",
                    "0.5.20": "4a70cf735e88",
                    "0.5.21": "baade9146d3e",
                    "0.5.22": "9695bc89157c",
                    "0.5.23": "cc7b7281c241",
                }
            ),
        ),
        Target(
            _RUNNER,
            "_run_flashinfer_cutlass",
            releases.spans(
                {
                    "0.5.15": "d5a8d2189bdb",
                    "0.5.18": "52e75c3d3971",
                    "0.5.21": "d5bea0c7e0bc",
                    "0.5.22": "595cb61b50d3",
                    "0.5.23": "3ab025450e06",
                }
            ),
        ),
        Target(_RUNNER, _GETTER, releases.spans({"0.5.15": "f99d3075e445", "0.5.21": None})),
    ),
    why="the method's payload for the kernel has no such fields; nothing between flags and kernel carries the clamp",
    binding=(
        "class attributes for the two methods; the function that names the kernel is looked up in its module at each "
        "call. The tensors reach it through a context variable that is set while this method runs, so FP8, bf16 and "
        "MXFP4 layers on the same kernel are not touched"
    ),
    untouched="layers without swiglu_limit, other runners, and SGLang from 0.5.21 on, which passes the clamp itself",
    remove_when="support for SGLang 0.5.20 ends",
    install=install,
    proven_on=releases.span("0.5.14", "0.5.20"),
    elsewhere=(Status.NOT_NEEDED, "this SGLang hands swiglu_limit to the kernel itself"),
    mended=stock.mended_clamp,
)
