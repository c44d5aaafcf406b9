"""A layer on a runner, built as stdin asks, then checked and timed; started with `python -m`.

Whatever SGLang prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from sglang_sm120.commands.plan.child import end_with_parent
from sglang_sm120.commands.tune.requests import LayerRequest, read_request

SIMULATED = "--simulated"  # an SM120 without a GPU: our kernel in Triton's interpreter
DRAWS, MANY = 4, 512  # routings and inputs of each timed token count; one above so many tokens
Answer = dict[str, Any]


class Layer:
    """A layer that SGLang has built and loaded with random experts."""

    def __init__(self, request: LayerRequest) -> None:
        import torch

        from sglang_sm120 import settings
        from sglang_sm120.commands.one_runner import build, checks, weights
        from sglang_sm120.upstream import server_flags

        config = build.resolve(request)
        self.role = request.role
        self.device = torch.device(request.device)
        text = config.hf_text_config
        kind = server_flags.expert_kind(config)
        self.nvfp4 = kind == "hybrid-nvfp4" and self.role == "target"
        self.sizes = weights.Sizes(
            text.n_routed_experts, text.hidden_size, text.moe_intermediate_size, text.num_experts_per_tok, request.tp,
            request.ep, text.swiglu_limit, text.routed_scaling_factor or 1.0,
        )  # fmt: skip
        self.request = request
        torch.set_default_dtype(torch.bfloat16)
        self.alone = partial(build.alone, request.device)
        with self.device, self.alone():
            model = build.build(config, self.role)
        torch.set_default_dtype(torch.float32)
        self.layer = build.experts_of(model)
        experts: Any = "nvfp4" if self.nvfp4 else "mxfp4"
        build.require_runner(self.layer, experts, request.runner)
        block = build.BLOCKS[self.role]
        self.experts = weights.RandomExperts(self.sizes, self.nvfp4, block, self.device, request.seed)
        with self.alone(), build.draft_context(self.role):
            tensors = ((name, tensor.cpu()) for name, tensor in self.experts.tensors())  # as files give them
            build.load_tensors(model, tensors, self.device)
        major = torch.cuda.get_device_capability()[0] if request.device == "cuda" else 12
        ours = os.environ.get(settings.ACTIVATION.name) or settings.ACTIVATION.default
        self.bound = checks.BOUNDS[checks.activations(experts, request.runner, major, ours)]
        self.method = type(self.layer.quant_method).__name__
        self.context = partial(build.draft_context, self.role)

    def raw(self, x: Any, ids: Any, weights: Any) -> Any:
        """SGLang's call of the layer; top-k has multiplied its weights where SGLang's does."""
        import torch
        from sglang.srt.layers.moe.topk import StandardTopKOutput

        logits = x.new_empty((len(x), self.sizes.experts))  # their shape may be looked at, nothing else
        with torch.inference_mode(), self.alone(), self.context():
            return self.layer(x, StandardTopKOutput(weights, ids, logits))

    def whole(self, x: Any, ids: Any, weights: Any) -> Any:
        """The routed experts' part of DeepSeek-V4's block, routed scaling factor included, input left alone."""
        import torch
        from sglang.srt.layers.quantization import mxfp4_flashinfer_trtllm_moe as shared_step

        fused = getattr(self.layer, "should_fuse_routed_scaling_factor_in_topk", False)
        with torch.inference_mode():
            y = self.raw(x.clone(), ids, weights * self.sizes.factor if fused else weights)
            return shared_step.maybe_fuse_routed_scale_and_shared_add(self.layer, y, None, self.sizes.factor)


def build(request: LayerRequest) -> Iterator[Answer]:
    """Build the layer; the last answer has its method, and on a GPU the memory that it took at most."""
    global _layer
    import torch

    yield {"at": "building the layer"}
    _layer = Layer(request)
    memory = {}
    if request.device == "cuda":
        yield from _autotune(_layer)
        memory = {"peak_bytes": torch.cuda.max_memory_reserved(), "free_bytes": torch.cuda.mem_get_info()[0]}
    yield {"done": "built", "method": _layer.method, "bound": _layer.bound, **memory}


_layer: Layer


def _autotune(layer: Layer) -> Iterator[Answer]:
    """What SGLang does before it captures graphs: one forward within FlashInfer's tuner, for FlashInfer's runners."""
    if not layer.request.runner.startswith("flashinfer"):
        return
    from flashinfer.autotuner import autotune

    from sglang_sm120.commands.one_runner import cases

    yield {"at": "FlashInfer's autotune"}
    [case] = cases.timed(layer.sizes, 8192, 1, layer.device, layer.request.seed)
    with autotune(True):
        layer.whole(case.x, case.ids, case.weights)


def check(tokens: list[int]) -> Iterator[Answer]:
    """A row for each case."""
    from sglang_sm120.commands.one_runner import cases, checks

    layer = _layer
    for case in cases.checked(layer.sizes, layer.nvfp4, tokens, layer.device, layer.request.seed):
        yield {"at": case.name}
        yield {"row": checks.compared(layer.whole, layer.experts.reference, case, layer.bound)}
    yield {"done": "checked"}


def time(tokens: int, samples: int) -> Iterator[Answer]:
    """Microseconds of replays with cold L2, none where memory did not suffice, and the experts of this rank hit."""
    import torch

    from sglang_sm120.commands import gpu_timing

    yield {"at": f"timing T={tokens}"}
    try:
        if _graphs.get("tokens") != tokens:
            _capture(tokens)
        replays = [graph.replay for graph in _graphs["graphs"]]
        rounds = -(-samples // len(replays))
        times = gpu_timing.times_us(replays * (rounds + 1), _graphs["flush"])[len(replays) :]  # the first warms up
    except torch.OutOfMemoryError:
        _graphs.clear()
        torch.cuda.empty_cache()
        yield {"done": "no room", "tokens": tokens, "us": []}
        return
    yield {"done": "timed", "tokens": tokens, "us": times, "experts_hit": _graphs["hit"]}


def _capture(tokens: int) -> None:
    """A graph of a call for each draw, in the place of the last token count's."""
    import torch

    from sglang_sm120.commands import gpu_timing
    from sglang_sm120.commands.one_runner import cases

    layer = _layer
    _graphs.clear()
    torch.cuda.empty_cache()  # the other runners' processes need room too
    drawn = cases.timed(layer.sizes, tokens, DRAWS if tokens <= MANY else 1, layer.device, layer.request.seed)
    graphs = [gpu_timing.captured(partial(layer.raw, c.x, c.ids, c.weights)) for c in drawn]
    here = layer.sizes.local_experts
    hit = [int(c.ids[(c.ids >= 0) & (c.ids < here)].unique().numel()) for c in drawn]
    _graphs.update(
        tokens=tokens, graphs=graphs, cases=drawn, flush=gpu_timing.Flush(layer.device), hit=statistics.mean(hit)
    )


_graphs: dict[str, Any] = {}


def bandwidth() -> Iterator[Answer]:
    """Bytes read plus written per second by a copy of 2 GiB; None where memory does not suffice."""
    import torch

    from sglang_sm120.commands import gpu_timing

    yield {"at": "measuring the copy bandwidth"}
    try:
        source = torch.randint(0, 255, (2 * 2**30,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
    except torch.OutOfMemoryError:  # which says nothing of the runner
        yield {"done": "no room", "bytes_per_s": None}
        return
    samples = gpu_timing.times_us([lambda: target.copy_(source)] * 13, lambda: None)[3:]
    yield {"done": "bandwidth", "bytes_per_s": 2 * source.numel() / (statistics.median(samples) * 1e-6)}


ANSWERS: dict[str, Callable[..., Iterator[Answer]]] = {"check": check, "time": time, "bandwidth": bandwidth}


def answers(line: str, first: bool) -> Iterator[Answer]:
    """All answers to a line; what is raised becomes the last one."""
    try:
        if first:
            yield from build(read_request(line))
        else:
            question = json.loads(line)
            yield from ANSWERS[question.pop("do")](**question)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a runner ends in is what its user asks about
        import traceback

        traceback.print_exc()
        message = f"{type(error).__name__}: {error}" if not isinstance(error, SystemExit) else str(error)
        word = "refused" if first and _is_refusal(error) else "failed"
        yield {word: " ".join(message.split())[:400]}


def _is_refusal(error: BaseException) -> bool:
    """Whether SGLang, or we, said no to this runner, rather than broke."""
    return isinstance(error, (SystemExit, ValueError, NotImplementedError, AssertionError))


def main() -> int:
    """Serve until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command that started this one decides
    end_with_parent()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if SIMULATED in sys.argv:
        from sglang_sm120.commands.plan import simulate

        simulate.install("sm120", memory_gib=96)
    from sglang_sm120.commands.one_runner.build import import_sglang

    import_sglang()
    first = True
    for line in sys.stdin:
        for answer in answers(line, first):
            print(json.dumps(answer), file=out, flush=True)
        first = False
    sys.stderr.flush()
    os._exit(0)  # SGLang leaves threads behind that would delay the exit


if __name__ == "__main__":
    sys.exit(main())
