"""Weights written again and again through SGLang's own updaters: run with a release on PYTHONPATH.

    python update_probe.py < {"first": DIR, "second": DIR, "tp": N, "flags": [flag, ...]} on stdin

Each rank is a process with SGLang's groups over gloo; it holds the experts of SGLang's draft model on the CPU and the
release's own updater. One more process is the trainer that broadcasts. A rank says for each step what was refused and,
against the files: bytes that differ in what a CUDA graph reads that was captured before the first step, and parameters
whose address changed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import cpu_ranks
import draft_layer
from sglang_sm120.commands.plan import child as plan_child
from sglang_sm120.commands.plan import one_rank, simulate
from sglang_sm120.upstream import server_flags

_COMPONENTS = "model_executor.model_runner_components"
GROUP = "trainer"
LIMIT_S = 60
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


class Rank:
    """A rank's model and the release's updater of it."""

    def __init__(self, asked: dict[str, Any], rank: int) -> None:
        self.asked, self.rank, self.tp = asked, rank, asked["tp"]
        server_args = plan_child._resolve(["--model-path", asked["first"], "--tp", str(self.tp), *EAGLE, *asked["flags"]])
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
            "custom_weight_loaders": {},
            "get_model": lambda: self.model,
            "get_model_runner": lambda: SimpleNamespace(model=self.model),
        }
        try:
            from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
        except ImportError:
            from sglang.srt.model_executor.model_runner import ModelRunner

            runner = ModelRunner.__new__(ModelRunner)
            vars(runner).update(given, model=self.model, server_args=mock.MagicMock(), _model_update_group={})
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

    def direct(self, directory: str) -> Any:
        shard, _ = draft_layer.shard(Path(directory), self.tp, 1, self.rank)
        held = [(n, t.view(getattr(self.layer, n).dtype)) for n, t in zip(PARAMETERS, shard, strict=True)]
        return self.tensor([(f"model.decoder.mlp.experts.{n}", t) for n, t in held], "direct")

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
        yield "distributed", lambda: self.distributed(tensors(second)), lambda: self.differing(second)
        yield "half", lambda: self.tensor(tensors(first, even)), lambda: self.differing(first, second)
        yield "whole after half", lambda: self.tensor(tensors(first)), lambda: self.differing(first)
        yield "ipc", lambda: self.ipc(tensors(second)), lambda: self.differing(second)
        yield "out of range", lambda: self.ipc(far(tensors(first))), lambda: -1
        yield "repaired", lambda: self.disk(first), lambda: self.differing(first)


def serve(asked: dict[str, Any], rank: int, meeting: str, port: int, said: dict[str, Any]) -> None:
    """A rank's life."""
    import torch
    from sglang.srt.plugins import load_plugins

    load_plugins()
    torch.set_default_dtype(torch.bfloat16)
    held = Rank(asked, rank)
    cpu_ranks.start_groups(asked["tp"], rank, f"file://{meeting}/store", LIMIT_S)
    with cpu_ranks.on_the_cpu(), one_rank.speculative_context():
        held.build()
        _without_a_gpu()
        held.load_first()
        held.method.experts.note_forward()  # as the capture of the graphs does
        group = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": asked["tp"] + 1}
        joined = held.updater.init_weights_update_group(**group, group_name=GROUP, backend="gloo")
        assert joined[0], joined
        for name, update, wrong in held.steps():
            found: dict[str, Any] = {"refused": None, "answer": None}
            try:
                found["answer"] = update()
            except (ValueError, RuntimeError) as error:
                found["refused"] = f"{type(error).__name__}: {error}"
            found["different"] = wrong()
            found["moved"] = [n for n, at in held.addresses.items() if getattr(held.layer, n).data_ptr() != at]
            said[name] = found


def _without_a_gpu() -> None:
    """What an update says of the GPU's memory."""
    import torch

    for name in ("synchronize", "empty_cache", "max_memory_allocated", "current_device"):
        setattr(torch.cuda, name, lambda *_a, **_k: 0)
    for name in ("model_loader.loader", "model_executor.model_runner", f"{_COMPONENTS}.weight_updater"):
        module = sys.modules.get(f"sglang.srt.{name}")
        if hasattr(module, "get_available_gpu_memory"):
            module.get_available_gpu_memory = lambda *_a, **_k: 0.0


def train(asked: dict[str, Any], meeting: str, port: int, said: dict[str, Any]) -> None:
    """Broadcasts the second checkpoint's experts to all ranks."""
    import torch
    from sglang.srt.utils import init_custom_process_group

    store = f"file://{meeting}/trainer"
    torch.distributed.init_process_group("gloo", init_method=store, world_size=1, rank=0)
    world = asked["tp"] + 1
    at = f"tcp://127.0.0.1:{port}"
    group = init_custom_process_group("gloo", init_method=at, world_size=world, rank=0, group_name=GROUP)
    torch.distributed.broadcast(flattened(tensors(asked["second"])).get_flattened_tensor(), src=0, group=group)
    said["sent"] = True


def child(live: Callable[..., None], answer: Path, *arguments: Any) -> int:
    """Fork a process that writes what it says."""
    pid = os.fork()
    if pid:
        return pid
    said: dict[str, Any] = {}
    try:
        live(*arguments, said)
    except BaseException as error:  # noqa: BLE001 - what ends a process is what the test looks at
        traceback.print_exc()
        said["error"] = f"{type(error).__name__}: {error}"
    answer.write_text(json.dumps(said, default=str))
    sys.stderr.flush()
    os._exit(0)


def perform(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank said."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as meeting:
        answers = [Path(meeting) / f"{n}.json" for n in range(asked["tp"] + 1)]
        pids = [child(serve, answers[rank], asked, rank, meeting, port) for rank in range(asked["tp"])]
        pids.append(child(train, answers[-1], asked, meeting, port))
        for pid in pids:
            os.waitpid(pid, 0)
        return [json.loads(a.read_text()) if a.exists() else {"error": "died"} for a in answers[:-1]]


def main() -> None:
    """All runs: {name: request} -> {name: answers}."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    requests = json.load(sys.stdin)
    os.environ |= {"HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo", "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "0"}
    simulate.install("sm120", memory_gib=96)
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork
    _imports()
    os.write(answer_to, json.dumps({name: perform(asked) for name, asked in requests.items()}).encode())
    os._exit(0)


def _imports() -> None:
    """Once for all processes. Not the models: they read SGLang's environment, and resolving a launch sets it."""
    import sglang.srt.layers.moe.fused_moe_triton
    import sglang.srt.layers.quantization.modelopt_quant
    import sglang.srt.model_loader.loader
    import sglang.srt.server_args  # noqa: F401


if __name__ == "__main__":
    main()
