"""Which arguments reach the kernels of a hybrid checkpoint's target layer: run with a release on PYTHONPATH.

    python kernel_probe.py flashinfer_cutlass|marlin < model directory on stdin

SGLang resolves a launch, builds its own FusedMoE at a small size on the CPU and runs its method on a token; the kernel
itself is replaced by one that looks at its arguments. Prints them as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

from sglang_sm120.commands.plan import child as plan_child
from sglang_sm120.commands.plan import one_rank, simulate
from sglang_sm120.upstream import server_flags

SHAPE = {"num_experts": 4, "hidden_size": 128, "intermediate_size": 128, "top_k": 2}
SEEN: dict[str, Any] = {}


def watch_flashinfer() -> None:
    """Before SGLang is imported: 0.5.14 binds the kernel at import."""
    import flashinfer.fused_moe as module

    @functools.wraps(module.cutlass_fused_moe)
    def look(*_args: Any, **arguments: Any) -> list[Any]:
        SEEN.update({k: v.tolist() for k, v in arguments.items() if k.startswith("swiglu_") and v is not None})
        SEEN["called"] = True
        return [arguments["output"]]

    module.cutlass_fused_moe = look


def watch_marlin() -> None:
    """The function that SGLang's Marlin runner imports when it runs."""
    import torch
    from sglang.srt.layers.moe.fused_moe_triton import fused_marlin_moe as module
    from sglang.srt.layers.moe.moe_runner import marlin

    def look(hidden_states: Any, **arguments: Any) -> Any:
        SEEN.update({k: arguments[k] for k in ("routed_scaling_factor", "clamp_limit")})
        SEEN["called"] = True
        return hidden_states

    module.fused_marlin_moe = look
    if hasattr(marlin, "fused_marlin_moe"):
        marlin.fused_marlin_moe = look
    marlin.MARLIN_MOE_WORKSPACE = torch.zeros(1, dtype=torch.int32)


def build(model: str, runner: str) -> Any:
    """SGLang's layer, as its model builds it, with weights as its loader leaves them."""
    import torch
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE

    server_args = plan_child.resolve(["--model-path", model, "--tp", "1", "--moe-runner-backend", runner])
    one_rank.publish_as_scheduler(server_args)
    config = one_rank.quantization_config(server_flags.model_config(server_args))
    layer = FusedMoE(
        **SHAPE,
        layer_id=1,
        params_dtype=torch.bfloat16,
        quant_config=config,
        prefix="model.layers.1.mlp.experts",
        routed_scaling_factor=1.5,
        swiglu_limit=10.0,
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(0 if parameter.dtype == torch.uint8 else 1)
    return layer


def run(layer: Any) -> None:
    """One token through the layer's method."""
    import torch
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    top = (torch.full((1, 2), 0.5), torch.zeros(1, 2, dtype=torch.int32), torch.zeros(1, 4))
    names = StandardDispatchOutput._fields
    given = {"hidden_states": torch.zeros(1, 128).bfloat16(), "hidden_states_scale": None}
    given["topk_output"] = StandardTopKOutput(*top)
    layer.quant_method.apply(layer, StandardDispatchOutput(**{n: given.get(n) for n in names}))


def main() -> None:
    """One runner."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    model, runner = sys.stdin.read().strip(), sys.argv[1]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    simulate.install("sm120", memory_gib=96)
    watch_flashinfer()
    from sglang.srt.plugins import load_plugins

    load_plugins()
    layer = build(model, runner)
    from sglang.srt.distributed import parallel_state

    parallel_state._TP = SimpleNamespace(world_size=1)  # the method asks it for symmetric memory, which is off
    with one_rank.simulated_rank():
        if runner == "marlin":
            watch_marlin()
        else:
            layer.quant_method.process_weights_after_loading(layer)
        run(layer)
    SEEN["topk_scales"] = bool(layer.should_fuse_routed_scaling_factor_in_topk)
    os.write(answer_to, json.dumps(SEEN).encode())
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
