"""One process per rank: SGLang's groups over gloo, a layer of it with our method, its loader, its all-reduce.

Reads {"model", "batches", "runs": [{"name", "tp", "ep", "role", "env", "dies"}], "limit"} on stdin. For each run it
forks tp processes, gives them `limit` seconds, ends those that are left, and answers {run: [what a rank said, ...]}. A
batch is the top-k ids of its tokens; `env` and `dies` say what is different on one rank: {"1": {...}}, 1.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from scripts.layers import cpu_ranks, draft_layer
from sglang_sm120.commands.plan import child as plan_child
from sglang_sm120.commands.plan import simulate

GLOO_TIMEOUT = 30  # seconds that a rank waits for another
WAIT = 12  # and for what it says of itself


def inputs(ids: list[list[int]], hidden: int, seed: int) -> tuple[Any, Any, Any]:
    """Hidden states, top-k ids and weights of a batch: the same on every rank and in the test."""
    import torch

    g = torch.Generator().manual_seed(seed)
    x = torch.randn(len(ids), hidden, generator=g).bfloat16()
    weights = torch.rand(len(ids), len(ids[0]), generator=g) + 0.1
    return x, torch.tensor(ids, dtype=torch.int32), weights


def serve(request: dict[str, Any], run: dict[str, Any], rank: int, address: str, said: dict[str, Any]) -> None:
    """A rank's life from the plugin to the sum; says its method, its shapes, and its shares before and after."""
    import torch
    from sglang.srt.distributed import tensor_model_parallel_all_reduce
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    from sglang_sm120.commands.plan import one_rank
    from sglang_sm120.patching import ranks_agree

    ranks_agree.WAIT_S = WAIT
    role, flags = run.get("role", "draft"), run.get("flags", [])
    model_config = draft_layer.resolve(Path(request["model"]), run["tp"], run["ep"], rank, role, flags)
    cpu_ranks.start_groups(run["tp"], rank, address, GLOO_TIMEOUT)
    config = model_config.hf_config
    model = draft_layer.build(model_config, role)
    layer = draft_layer.experts_of(model)
    said |= {"method": type(layer.quant_method).__name__, "shares": [], "sums": []}
    said["shapes"] = {n: list(p.shape) for n, p in layer.named_parameters()}
    draft_layer.load(model, model_config)
    for seed, ids in enumerate(request["batches"]):
        x, topk_ids, weights = inputs(ids, config.hidden_size, seed)
        context = one_rank.speculative_context() if role == "draft" else nullcontext()
        with torch.inference_mode(), cpu_ranks.on_the_cpu(), context:
            share = layer(x, StandardTopKOutput(weights, topk_ids, torch.zeros(len(ids), config.n_routed_experts)))
        if run.get("dies") == rank:
            os._exit(9)
        said["shares"].append(share.tolist())
        said["sums"].append(tensor_model_parallel_all_reduce(share).tolist())


def live(request: dict[str, Any], run: dict[str, Any], rank: int, address: str, answer: Path) -> None:
    """The child: serve, write the answer, leave."""
    plan_child.end_with_parent()
    os.environ.update((run.get("env") or {}).get(str(rank), {}))
    said: dict[str, Any] = {}
    status = 0
    try:
        serve(request, run, rank, address, said)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what ends a rank is what the test looks at
        traceback.print_exc()
        said["error"], status = f"{type(error).__name__}: {error}", 1
    answer.write_text(json.dumps(said))
    sys.stderr.flush()
    os._exit(status)


def free_address() -> str:
    """An address of this host that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def wait(children: list[int], limit: float) -> list[int | None]:
    """Exit statuses, negative for a signal; None for those that had to be ended."""
    statuses: dict[int, int] = {}
    until = time.monotonic() + limit
    while len(statuses) < len(children) and time.monotonic() < until:
        for child in set(children) - statuses.keys():
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                statuses[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    for child in set(children) - statuses.keys():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return [statuses.get(child) for child in children]


def perform(request: dict[str, Any], run: dict[str, Any]) -> list[dict[str, Any]]:
    """One run: a process for each rank; what each said, with its exit status."""
    address, children = free_address(), []
    with tempfile.TemporaryDirectory() as directory:
        answers = [Path(directory) / str(rank) for rank in range(run["tp"])]
        for rank, answer in enumerate(answers):
            child = os.fork()
            if child == 0:
                live(request, run, rank, address, answer)
            children.append(child)
        statuses = wait(children, request["limit"])
        said = [json.loads(a.read_text()) if a.exists() else {} for a in answers]
    return [answer | {"pid": c, "status": s} for answer, c, s in zip(said, children, statuses, strict=True)]


def main() -> None:
    """All runs, one after another."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "0"}
    simulate.install("sm120", memory_gib=96)
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork, and the ranks share few cores
    import sglang.srt.layers.moe.fused_moe_triton
    import sglang.srt.layers.quantization.modelopt_quant
    import sglang.srt.model_loader.loader
    import sglang.srt.models.deepseek_v4_nextn
    import sglang.srt.server_args  # noqa: F401

    answers = {run["name"]: perform(request, run) for run in request["runs"]}
    with os.fdopen(answer_to, "w") as out:
        json.dump(answers, out)
    sys.stderr.flush()
    os._exit(0)  # SGLang leaves threads behind that would delay the exit


if __name__ == "__main__":
    main()
