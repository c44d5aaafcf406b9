"""Have each weight update end with every layer in its kernel's layout, or fail by name."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from sglang_sm120.patching import on_import, replace
from sglang_sm120.patching.records import Patch
from sglang_sm120.settings import RUNNER, Settings
from sglang_sm120.upstream import contracts, features, releases
from sglang_sm120.upstream.contracts import Target

NAME = "weight_updates"
_RUNNER = "sglang.srt.model_executor.model_runner"
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"
_LOADER = "sglang.srt.model_loader.loader"
_IPC, _TENSOR, _DISTRIBUTED = (f"update_weights_from_{source}" for source in ("ipc", "tensor", "distributed"))
_THROUGH_LOADERS = (None, "flattened_bucket")  # the other formats of an update by tensor write parameters directly


def install(_settings: Settings) -> str:
    """Wrap the updates that end without post-processing, now or when SGLang imports them."""
    module, owner = (_UPDATER, "WeightUpdater") if contracts.has_module(_UPDATER) else (_RUNNER, "ModelRunner")
    names = [_IPC] if features.has_weight_sessions() else [_IPC, _TENSOR, _DISTRIBUTED]

    def _replace(module: ModuleType) -> None:
        for name in names:
            replace.replace(getattr(module, owner), name, NAME, _wrap_tensor if name == _TENSOR else _wrap)

    on_import.when_imported(module, _replace)
    return f"{owner}.{', '.join(names)}"


def _wrap(original: FunctionType) -> Callable[..., Any]:
    def update_weights(self: Any, *arguments: Any, **named: Any) -> Any:
        answer = original(self, *arguments, **named)
        for layer, method in _ours(self):
            method.process_weights_after_loading(layer)
        return answer

    return update_weights


def _wrap_tensor(original: FunctionType) -> Callable[..., Any]:
    after = _wrap(original)

    def update_weights_from_tensor(self: Any, named_tensors: Any, load_format: str | None = None) -> Any:
        if load_format not in _THROUGH_LOADERS:
            for layer, method in _ours(self):
                method.restore_weights_before_loading(layer)
        return after(self, named_tensors, load_format)

    return update_weights_from_tensor


def _ours(updater: Any) -> list[tuple[Any, Any]]:
    """The layers of the updated model that our methods run."""
    from sglang_sm120.moe.base import Sm120MoEMethod

    model = updater.get_model() if hasattr(updater, "get_model") else updater.model
    found = ((layer, getattr(layer, "quant_method", None)) for layer in model.modules())
    return [(layer, method) for layer, method in found if isinstance(method, Sm120MoEMethod)]


PATCH = Patch(
    name=NAME,
    summary=f"after a weight update by tensor, broadcast or IPC the experts of `{RUNNER}` are prepared again",
    symptom=(
        "`used before process_weights_after_loading` after `update_weights_from_tensor` or "
        "`update_weights_from_distributed` (SGLang 0.5.14 to 0.5.20), and wrong numbers where a CUDA graph runs; "
        "`Post-hook processing failed` in the log after `update_weights_from_ipc`, whose answer is success"
    ),
    targets=(
        Target(
            _UPDATER,
            "WeightUpdater.update_weights_from_ipc",
            releases.spans({"0.5.16": "63131b7eb099", "0.5.17": "91a5c8a92c7e", "0.5.21": "fc7c7c66fe49"}),
        ),
        Target(
            _RUNNER, "ModelRunner.update_weights_from_disk", releases.spans({"0.5.14": "994709dbf0ce", "0.5.16": None})
        ),
        Target(
            _RUNNER,
            "ModelRunner.update_weights_from_tensor",
            releases.spans({"0.5.14": "11033b24e1a8", "0.5.16": None}),
        ),
        Target(
            _RUNNER,
            "ModelRunner.update_weights_from_distributed",
            releases.spans({"0.5.14": "26a6d2d2f09e", "0.5.16": None}),
        ),
        Target(
            _RUNNER, "ModelRunner.update_weights_from_ipc", releases.spans({"0.5.14": "c178c2e86383", "0.5.16": None})
        ),
        Target(
            _UPDATER,
            "WeightUpdater.update_weights_from_disk",
            releases.spans(
                {
                    "0.5.16": "417cc265628a",
                    "0.5.17": "be6c5f88f67f",
                    "0.5.21": "f00a0c542d3a",
                    "0.5.22": "7090439f151f",
                    "0.5.23": "8c2ad09b35cf",
                }
            ),
        ),
        Target(
            _UPDATER,
            "WeightUpdater.update_weights_from_tensor",
            releases.spans(
                {"0.5.16": "b704b6c901ad", "0.5.17": "6acb7f18d9bc", "0.5.21": "b6cf8d9c43c5", "0.5.22": "161c75f96b9e"}
            ),
        ),
        Target(
            _UPDATER,
            "WeightUpdater.update_weights_from_distributed",
            releases.spans({"0.5.16": "dd11e8e61834", "0.5.17": "c65bb71081c7", "0.5.21": None}),
        ),
        Target(_UPDATER, "WeightUpdater.begin_weight_update", releases.spans({"0.5.21": "374a3ab82dfe"})),
        Target(_UPDATER, "WeightUpdater.end_weight_update", releases.spans({"0.5.21": "5108ea79f581"})),
        Target(
            _LOADER,
            "DefaultModelLoader.load_weights_and_postprocess",
            releases.spans(
                {"0.5.14": "e8f28611f4d7", "0.5.16": "06bd225e5e0b", "0.5.18": "803893b57582", "0.5.20": "f22f2082e356"}
            ),
        ),
        Target(
            _LOADER,
            "DefaultModelLoader.postprocess_weights",
            releases.spans({"0.5.20": "835738e80c2d", "0.5.21": "6f0c5ce1a4c7", "0.5.22": "47301e0fe5bf"}),
        ),
        Target(
            _LOADER,
            "DefaultModelLoader.restore_weights_before_loading",
            releases.spans({"0.5.21": "e0f30fd17a8e", "0.5.22": "556f82a4509f"}),
        ),
    ),
    why=(
        "up to SGLang 0.5.20 nobody calls `process_weights_after_loading` after these updates, and no registry names "
        "them; from 0.5.21 on they are between a begin and an end that do. The IPC update's post-processing swallows "
        "every exception. SGLang's hook registry would skip a hook that does not fit, and the updates would go on wrong"
    ),
    binding="class attributes: SGLang calls them on the runner's updater, up to 0.5.15 on the runner",
    untouched="updates from disk, weight sessions (0.5.21 and later), and the layers of SGLang's own methods",
    remove_when=(
        "support for SGLang 0.5.20 ends and upstream's checkpoint-engine worker lets exceptions of its post-hook out"
    ),
    install=install,
)
