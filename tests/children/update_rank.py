"""A rank of `update_probe`: the experts of SGLang's draft or target, and the release's own updater of them."""

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
Tensors = list[tuple[str, Any]]


def tensors(directory: str, role: Any = "draft", wanted: Callable[[int], bool] = lambda _expert: True) -> Tensors:
    """The experts of the draft, or of the target's first layer, as the checkpoint has them, in the order of the files.

    A trainer sends no `input_scale`.
    """
    from safetensors import safe_open

    found, block = [], f"{draft_layer.BLOCKS[role]}.ffn.experts."
    for file in sorted(Path(directory).glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - the file is no mapping
                if name.startswith(block) and "input_scale" not in name and wanted(int(name.split(".")[4])):
                    found.append((name, opened.get_tensor(name)))
    return found


def far(given: Tensors) -> Tensors:
    """The same codes with other scales: 2^-77, outside the range of the fast kernel, or 1.25, which MXFP4 lacks."""
    import torch

    byte = {torch.float8_e8m0fnu: 50, torch.float8_e4m3fn: 0x3A}
    return [
        (n, torch.full_like(t.view(torch.uint8), byte[t.dtype]).view(t.dtype) if t.dtype in byte else t)
        for n, t in given
    ]


def flattened(given: Tensors) -> Any:
    """SGLang's bucket of tensors; as one of bytes, because gloo has no e8m0."""
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    return FlattenedTensorBucket(named_tensors=given)


def load_by_hand(model: Any, given: Tensors) -> None:
    """What --custom-weight-loader names: a user's function that writes parameters."""
    parameters = dict(model.named_parameters())
    for name, tensor in given:
        parameters[name].data.copy_(tensor)


def copied(weights: Any) -> Any:
    """Prepared weights in memory of their own; a cast's scales lie in the first half of the given ones."""
    import torch

    copies = {f.name: getattr(weights, f.name) for f in dataclasses.fields(weights)}
    copies |= {n: t.clone() for n, t in copies.items() if isinstance(t, torch.Tensor)}
    if weights.given_scales:
        copies["given_scales"] = tuple(t.clone() for t in weights.given_scales)
        for name, given in zip(("w13_scale", "w2_scale"), copies["given_scales"], strict=True):
            copies[name] = given.view(-1)[: given.numel() // 2].view(copies[name].shape)
    return dataclasses.replace(weights, **copies)


class Rank:
    """A rank's model and the release's updater of it."""

    def __init__(self, asked: dict[str, Any], rank: int) -> None:
        self.asked, self.rank, self.tp = asked, rank, asked["tp"]
        self.role = asked.get("role", "draft")
        server_args = plan_child.resolve(
            ["--model-path", asked["first"], "--tp", str(self.tp), *EAGLE, *asked["flags"]]
        )
        one_rank.publish_as_scheduler(server_args, rank)
        draft_path = asked["first"] if self.role == "draft" else None
        self.config = server_flags.model_config(server_args, draft_path=draft_path)
        self.server_args = server_args

    def build(self) -> None:
        self.model = draft_layer.build(self.config, self.role)
        self.layer = draft_layer.experts_of(self.model)
        self.method = self.layer.quant_method
        self.parameters = self.method.experts.form.parameters
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
            self.model.load_weights(tensors(self.asked["first"], self.role))
        self.method.process_weights_after_loading(self.layer)
        self.captured = self.method.weights  # what a CUDA graph reads, whatever is written later
        self.addresses = {n: getattr(self.layer, n).data_ptr() for n in self.parameters}

    def session(self, update: Callable[[], Any]) -> Any:
        if self.sessions:
            self.updater.begin_weight_update()
        answer = update()
        if self.sessions:
            self.updater.end_weight_update(run_post_load=False)
        return answer

    def disk(self, directory: str) -> Any:
        block = f"{draft_layer.BLOCKS[self.role]}.ffn.experts."
        wanted = lambda name: name.startswith(block)  # noqa: E731
        return self.updater.update_weights_from_disk(directory, "auto", weight_name_filter=wanted)

    def tensor(self, given: Tensors, load_format: str | None = None) -> Any:
        return self.session(lambda: self.updater.update_weights_from_tensor(given, load_format=load_format))

    def bucket(self, given: Tensors) -> Any:
        made = flattened(given)
        flat = {"flattened_tensor": made.get_flattened_tensor(), "metadata": made.get_metadata()}
        return self.tensor(flat, "flattened_bucket")

    def direct(self, directory: str, load_format: str = "direct") -> Any:
        shard, _ = draft_layer.shard(Path(directory), self.tp, 1, self.rank, self.role)
        held = [(n, t.view(getattr(self.layer, n).dtype)) for n, t in zip(self.parameters, shard, strict=True)]
        return self.tensor([(f"{draft_layer.PREFIXES[self.role]}.{n}", t) for n, t in held], load_format)

    def pieces(self, given: Tensors) -> Any:
        """Seven tensors a request, as a trainer sends them."""

        def update() -> Any:
            sent = [given[at : at + 7] for at in range(0, len(given), 7)]
            return [self.updater.update_weights_from_tensor(part) for part in sent][-1]

        return self.session(update)

    def resumed(self, given: Tensors) -> Any:
        """Weights were released and come again with any content, at the same addresses."""
        import torch

        for name in self.parameters:
            parameter = getattr(self.layer, name).data.view(-1).view(torch.uint8)
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

        want, _ = draft_layer.shard(Path(directory), self.tp, 1, self.rank, self.role)
        if other is not None:
            odd, _ = draft_layer.shard(Path(other), self.tp, 1, self.rank, self.role)
            for mine, theirs in zip(want, odd, strict=True):
                mine[1::2] = theirs[1::2]
        held = fp4_moe.restore(copied(self.captured))
        pairs = zip(held, want, strict=True)
        return sum(int((a.view(-1).view(torch.uint8) != b.view(-1).view(torch.uint8)).sum()) for a, b in pairs)

    def steps(self) -> Iterator[tuple[str, Callable[[], Any], Callable[[], int]]]:
        """Name, what is done, and how many bytes are then wrong."""
        first, second = self.asked["first"], self.asked["second"]
        load = lambda directory, *wanted: tensors(directory, self.role, *wanted)  # noqa: E731
        even = lambda expert: expert % 2 == 0  # noqa: E731
        yield "disk", lambda: self.disk(second), lambda: self.differing(second)
        yield "disk again", lambda: self.disk(second), lambda: self.differing(second)
        yield "tensor", lambda: self.tensor(load(first)), lambda: self.differing(first)
        yield "bucket", lambda: self.bucket(load(second)), lambda: self.differing(second)
        yield "direct", lambda: self.direct(first), lambda: self.differing(first)
        yield "custom", lambda: self.direct(second, CUSTOM), lambda: self.differing(second)
        yield "pieces", lambda: self.pieces(load(first)), lambda: self.differing(first)
        if "--enable-memory-saver" in self.asked["flags"]:
            yield "resumed", lambda: self.resumed(load(second)), lambda: self.differing(second)
        yield "distributed", lambda: self.distributed(load(second)), lambda: self.differing(second)
        yield "half", lambda: self.tensor(load(first, even)), lambda: self.differing(first, second)
        yield "whole after half", lambda: self.tensor(load(first)), lambda: self.differing(first)
        yield "ipc", lambda: self.ipc(load(second)), lambda: self.differing(second)
        yield "out of range", lambda: self.ipc(far(load(first))), lambda: -1
        yield "repaired", lambda: self.disk(first), lambda: self.differing(first)
