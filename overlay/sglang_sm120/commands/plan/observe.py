"""The child of `moe.stock`: stock SGLang resolves a hybrid launch on a simulated GPU and says what it would run.

It resolves a launch and builds the MoE layers as `plan --stock` does, from headers that are written for the purpose.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_sm120.commands.plan.document import Layer, Request
from sglang_sm120.moe.stock import LIMIT, Observed, StockLayer
from sglang_sm120.upstream import server_flags


def _clamp_that_reaches_flashinfer() -> tuple[float, ...] | None:
    """Upstream's clamp tensors through upstream's call of the kernel, with a kernel that only looks."""
    from types import SimpleNamespace

    import torch
    from sglang.srt.layers.moe.moe_runner import flashinfer_cutlass as runner
    from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig

    config = MoeRunnerConfig(activation="silu", is_gated=True, swiglu_limit=LIMIT)
    config.layer = SimpleNamespace(moe_ep_size=1, moe_ep_rank=0, moe_tp_size=1, moe_tp_rank=0)
    triple = runner.materialize_swiglu_params_for_cutlass(config, 1, torch.device("cpu"))
    seen: dict[str, Any] = {}

    def look(**arguments: Any) -> list[Any]:
        seen.update(arguments)
        return [arguments["output"]]

    scales = [torch.zeros(1, 4, 4, dtype=torch.float8_e4m3fn) if n in (1, 4) else torch.ones(1) for n in range(6)]
    weights = {
        "w13_weight": torch.zeros(1, 16, 8, dtype=torch.uint8),
        "w2_weight": torch.zeros(1, 16, 8, dtype=torch.uint8),
    }
    named = dict(zip(("swiglu_alpha", "swiglu_beta", "swiglu_limit"), triple, strict=True))
    info = runner.FlashInferCutlassMoeQuantInfo(quant_type="fp4", quant_scales=scales, **weights, **named)
    topk = SimpleNamespace(topk_weights=torch.ones(1, 1), topk_ids=torch.zeros(1, 1, dtype=torch.int32))
    dispatched = SimpleNamespace(
        hidden_states=torch.zeros(1, 16).bfloat16(), hidden_states_scale=None, topk_output=topk
    )
    _, activation_type = runner._flashinfer_cutlass_fused_moe()
    runner._flashinfer_cutlass_fused_moe = lambda: (look, activation_type)
    runner._run_flashinfer_cutlass(
        dispatch_output=dispatched, quant_info=info, runner_config=config, output=torch.zeros(1, 16).bfloat16()
    )
    reached = [seen[name] for name in named if seen.get(name) is not None]
    return tuple(float(t[0]) for t in reached) if len(reached) == len(named) else None


def _stock(layer: Layer | None) -> StockLayer | None:
    return None if layer is None else StockLayer(layer.method, layer.runner, layer.packed, layer.faults)


def main() -> int:
    """The child: one JSON document on stdout."""
    from sglang_sm120.checkpoint import headers_only
    from sglang_sm120.commands.plan import child as plan_child
    from sglang_sm120.commands.plan import simulate

    answer_to = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    simulate.install(request["arch"], memory_gib=96)
    with tempfile.TemporaryDirectory() as directory:
        model = headers_only.write(Path(directory), "hybrid-nvfp4", "nextn")
        flags = ("--tp", "2", *server_flags.eagle())
        answer = plan_child.decide(Request(model=str(model), flags=flags, arch=request["arch"]))
    try:
        clamp = _clamp_that_reaches_flashinfer()
    except (ImportError, AttributeError, TypeError, ValueError, AssertionError, RuntimeError):
        clamp = None  # upstream looks different here too; nothing is known, so nothing is mended
    with os.fdopen(answer_to, "w") as out:
        json.dump(asdict(Observed(_stock(answer.target), _stock(answer.draft), clamp)), out)
    sys.stderr.flush()
    os._exit(0)  # SGLang leaves threads behind that would delay the exit


if __name__ == "__main__":
    sys.exit(main())
