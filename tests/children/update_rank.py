"""A rank of `update_probe`: the experts of SGLang's draft model, and the release's own updater of them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from scripts.layers import draft_layer
from sglang_sm120.commands.plan import child as plan_child
from sglang_sm120.commands.plan import one_rank
from sglang_sm120.upstream import server_flags

GROUP = "trainer"
CUSTOM = "update_rank.load_by_hand"
EAGLE = ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "1"]
EAGLE += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "2"]
PARAMETERS = ("w13_weight", "w13_weight_scale_inv", "w2_weight", "w2_weight_scale_inv")
Tensors = list[tuple[str, Any]]


def tensors(directory: str, wanted: Callable[[int], bool] = lambda _expert: True) -> Tensors:
    """The draft's experts as the checkpoint has them, in the order of the files."""
    from safetensors import safe_open

    found = []
    for file in sorted(Path(directory).glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - the file is no mapping
                if ".ffn.experts." in name and name.startswith("mtp.0.") and wanted(int(name.split(".")[4])):
                    found.append((name, opened.get_tensor(name)))
    return found


def far(given: Tensors) -> Tensors:
    """The same codes with scales of 2^-77, outside the range of the fast kernel."""
    import torch

    return [(n, torch.full_like(t.view(torch.uint8), 50).view(t.dtype) if "scale" in n else t) for n, t in given]


def flattened(given: Tensors) -> Any:
    """SGLang's bucket of tensors; as one of bytes, because gloo has no e8m0."""
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    return FlattenedTensorBucket(named_tensors=given)


def load_by_hand(model: Any, given: Tensors) -> None:
    """What --custom-weight-loader names: a user's function that writes parameters."""
    parameters = dict(model.named_parameters())
    for name, tensor in given:
        parameters[name].data.copy_(tensor)


class Rank:
    """A rank's model and the release's updater of it."""

    def __init__(self, asked: dict[str, Any], rank: int) -> None:
        self.asked, self.rank, self.tp = asked, rank, asked["tp"]
        server_args = plan_child.resolve(
            ["--model-path", asked["first"], "--tp", str(self.tp), *EAGLE, *asked["flags"]]
        )
        one_rank.publish_as_scheduler(server_args, rank)
        self.config = server_flags.model_config(server_args, draft_path=asked["first"])
        self.server_args = server_args

    def build(self) -> None:
        self.model = draft_layer.build(self.config)
        self.layer = self.model.model.decoder.mlp.experts
        self.method = self.layer.quant_method
        self.updater = self._updater()
        self.sessions = hasattr(self.updater, "begin_weight_update")

    def _updater(self) -> Any:
        given = {
            "tp_rank": self.rank,
            "device": "cpu",
            "gpu_id": 0,
            "model_config": self.config,
            "custom_weight_loaders": [CUSTOM],
            "get_model": lambda: self.model,
            "get_model_runner": lambda: SimpleNamespace(model=self.model, server_args=self.server_args),
        }
        try:
            from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
        except ImportError:
            from sglang.srt.model_executor.model_runner import ModelRunner

            runner = ModelRunner.__new__(ModelRunner)
            args = SimpleNamespace(custom_weight_loader=[CUSTOM])
            vars(runner).update(given, model=self.model, server_args=args, _model_update_group={})
            return runner
        names = [f.name for f in dataclasses.fields(WeightUpdater) if f.init and f.name != "_model_update_group"]
        return WeightUpdater(**{n: given.get(n, mock.MagicMock()) for n in names})

    def load_first(self) -> None:
        """As the server starts."""
        if "dummy" not in self.asked["flags"]:
            self.model.load_weights(tensors(self.asked["first"]))
        self.method.process_weights_after_loading(self.layer)
        self.captured = self.method.weights  # what a CUDA graph reads, whatever is written later
        self.addresses = {n: getattr(self.layer, n).data_ptr() for n in PARAMETERS}

    def session(self, update: Callable[[], Any]) -> Any:
        if self.sessions:
            self.updater.begin_weight_update()
        answer = update()
        if self.sessions:
            self.updater.end_weight_update(run_post_load=False)
        return answer

    def disk(self, directory: str) -> Any:
        wanted = lambda name: name.startswith("mtp.0.") and ".ffn.experts." in name  # noqa: E731
        return self.updater.update_weights_from_disk(directory, "auto", weight_name_filter=wanted)

    def tensor(self, given: Tensors, load_format: str | None = None) -> Any:
        return self.session(lambda: self.updater.update_weights_from_tensor(given, load_format=load_format))

    def bucket(self, given: Tensors) -> Any:
        made = flattened(given)
        flat = {"flattened_tensor": made.get_flattened_tensor(), "metadata": made.get_metadata()}
        return self.tensor(flat, "flattened_bucket")

    def direct(self, directory: str, load_format: str = "direct") -> Any:
        shard, _ = draft_layer.shard(Path(directory), self.tp, 1, self.rank)
        held = [(n, t.view(getattr(self.layer, n).dtype)) for n, t in zip(PARAMETERS, shard, strict=True)]
        return self.tensor([(f"model.decoder.mlp.experts.{n}", t) for n, t in held], load_format)

    def pieces(self, given: Tensors) -> Any:
        """Seven tensors a request, as a trainer sends them."""

        def update() -> Any:
            sent = [given[at : at + 7] for at in range(0, len(given), 7)]
            return [self.updater.update_weights_from_tensor(part) for part in sent][-1]

        return self.session(update)

    def resumed(self, given: Tensors) -> Any:
        """Weights were released and come again with any content, at the same addresses."""
        import torch

        for name in PARAMETERS:
            parameter = getattr(self.layer, name).data.view(torch.uint8).view(-1)
            parameter[0::2], parameter[1::2] = 0x00, 0xFF
        return self.pieces(given)

    def distributed(self, given: Tensors) -> Any:
        names, dtypes, shapes = zip(*((n, str(t.dtype).removeprefix("torch."), t.shape) for n, t in given), strict=True)
        about = {"names": names, "dtypes": dtypes, "shapes": shapes, "group_name": GROUP}
        about["load_format"] = "flattened_bucket"
        if not self.sessions:
            return self.updater.update_weights_from_distributed(**about)
        received = self.updater.receive_weights_from_distributed(**about)
        return self.session(lambda: self.updater.load_weights_from_distributed(received))

    def ipc(self, given: Tensors) -> Any:
        """checkpoint-engine's worker hands tensors over and calls the post-hook; the rest is SGLang's."""

        def update(_context: Any, _handle: Any, device_id: int, run: Any, post_hook: Any) -> None:
            run(given)
            post_hook()

        package, worker = ModuleType("checkpoint_engine"), ModuleType("checkpoint_engine.worker")
        worker.update_weights_from_ipc = update  # type: ignore[attr-defined]
        with mock.patch.dict(sys.modules, {package.__name__: package, worker.__name__: worker}):
            from sglang.srt.checkpoint_engine import checkpoint_engine_worker as engine

            engine.update_weights_from_ipc = update
            extension = engine.SGLangCheckpointEngineWorkerExtensionImpl
            extension.get_device_uuid, extension.get_device_id = lambda _self: "GPU-0", lambda _self: 0
            return self.updater.update_weights_from_ipc(SimpleNamespace(zmq_handles={"GPU-0": "nowhere"}))

    def differing(self, directory: str, other: str | None = None) -> int:
        """Bytes of what a captured graph reads that are not the checkpoint's; odd experts may be `other`'s."""
        import torch

        from sglang_sm120.kernels.sm120 import fp4_moe

        want, _ = draft_layer.shard(Path(directory), self.tp, 1, self.rank)
        if other is not None:
            odd, _ = draft_layer.shard(Path(other), self.tp, 1, self.rank)
            for mine, theirs in zip(want, odd, strict=True):
                mine[1::2] = theirs[1::2]
        graph = self.captured
        copies = {n: getattr(graph, n).clone() for n in ("w13", "w13_scale", "w2", "w2_scale")}
        held = fp4_moe.restore(dataclasses.replace(graph, **copies))
        return sum(int((a.view(torch.uint8) != b).sum()) for a, b in zip(held, want, strict=True))

    def steps(self) -> Iterator[tuple[str, Callable[[], Any], Callable[[], int]]]:
        """Name, what is done, and how many bytes are then wrong."""
        first, second = self.asked["first"], self.asked["second"]
        even = lambda expert: expert % 2 == 0  # noqa: E731
        yield "disk", lambda: self.disk(second), lambda: self.differing(second)
        yield "disk again", lambda: self.disk(second), lambda: self.differing(second)
        yield "tensor", lambda: self.tensor(tensors(first)), lambda: self.differing(first)
        yield "bucket", lambda: self.bucket(tensors(second)), lambda: self.differing(second)
        yield "direct", lambda: self.direct(first), lambda: self.differing(first)
        yield "custom", lambda: self.direct(second, CUSTOM), lambda: self.differing(second)
        yield "pieces", lambda: self.pieces(tensors(first)), lambda: self.differing(first)
        if "--enable-memory-saver" in self.asked["flags"]:
            yield "resumed", lambda: self.resumed(tensors(second)), lambda: self.differing(second)
        yield "distributed", lambda: self.distributed(tensors(second)), lambda: self.differing(second)
        yield "half", lambda: self.tensor(tensors(first, even)), lambda: self.differing(first, second)
        yield "whole after half", lambda: self.tensor(tensors(first)), lambda: self.differing(first)
        yield "ipc", lambda: self.ipc(tensors(second)), lambda: self.differing(second)
        yield "out of range", lambda: self.ipc(far(tensors(first))), lambda: -1
        yield "repaired", lambda: self.disk(first), lambda: self.differing(first)
