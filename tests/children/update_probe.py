"""Weights written again and again through SGLang's own updaters: run with a release on PYTHONPATH.

    python update_probe.py < {"first": DIR, "second": DIR, "tp": N, "flags": [flag, ...], "role": ROLE} on stdin

Each rank is a process with SGLang's groups over gloo; it holds the experts of SGLang's draft model, or of its target,
on the CPU and the release's own updater. One more process is the trainer that broadcasts. A rank says for each step
what was refused and, against the files: bytes that differ in what a CUDA graph reads that was captured before the first
step, and parameters whose address changed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from update_rank import GROUP, Rank, flattened, tensors

from scripts.layers import cpu_ranks
from sglang_sm120.commands.plan import one_rank, simulate

_COMPONENTS = "model_executor.model_runner_components"
LIMIT_S = 60


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
    sent = flattened(tensors(asked["second"], asked.get("role", "draft")))
    torch.distributed.broadcast(sent.get_flattened_tensor(), src=0, group=group)
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
