"""Each launch twice from one import of SGLang: as `plan` shows it, and as SGLang goes about it without `plan`'s code.

Reads {"arch", "launches": [{"model", "flags", "env"}]} on stdin, prints [{"plan", "launch"}] in which each side has
"error" (None where it goes on) and the methods of "target" and "draft". The launch stops where layers would be made:
it asks the checkpoint's quantization for the method of a bare layer. Shared with `plan` is the simulated GPU alone.
"""

import json
import os
import sys
from contextlib import nullcontext

from sglang_sm120.commands.plan import child as plan_child
from sglang_sm120.commands.plan import simulate
from sglang_sm120.commands.plan.document import Request


def planned(launch, arch):
    answer = plan_child.decide(Request(model=launch["model"], flags=tuple(launch["flags"]), arch=arch))
    found = {role: layer and layer.method for role, layer in (("target", answer.target), ("draft", answer.draft))}
    return found | {"error": "; ".join(answer.errors) or None}


def bare_layer(flags, text):
    """As much of a FusedMoE as exists when SGLang asks for its method."""
    import torch
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE

    layer = FusedMoE.__new__(FusedMoE)
    torch.nn.Module.__init__(layer)
    shares = flags["tp_size"] // flags["ep_size"]
    layer.num_experts, layer.num_local_experts = text.n_routed_experts, text.n_routed_experts // flags["ep_size"]
    layer.hidden_size, layer.top_k = text.hidden_size, text.num_experts_per_tok
    layer.intermediate_size_per_partition = text.moe_intermediate_size // shares
    layer.moe_ep_size, layer.moe_ep_rank, layer.moe_tp_size, layer.moe_tp_rank = flags["ep_size"], 0, shares, 0
    layer.num_fused_shared_experts, layer.layer_id, layer.params_dtype = 0, 0, torch.bfloat16
    return layer


def launched(launch, _arch):
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.moe import utils
    from sglang.srt.model_loader import loader
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import prepare_server_args

    server_args = prepare_server_args(["--model-path", launch["model"], *launch["flags"]])
    server_args.resolve_once()
    server_args.check_server_args()
    flags = server_args.resolved_dict()
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    utils.initialize_moe_config()
    loader.get_model_architecture = lambda *_args, **_kwargs: (type("Model", (), {}), "")

    def method(config, prefix, context):
        with context:
            made = loader._get_quantization_config(config, LoadConfig())
            return type(made.get_quant_method(bare_layer(flags, config.hf_text_config), prefix)).__name__

    target = method(ModelConfig.from_server_args(server_args), "model.layers.2.mlp.experts", nullcontext())
    algorithm, draft = flags["speculative_algorithm"], None
    if algorithm:
        path = flags.get("speculative_draft_model_path") or launch["model"]
        config = ModelConfig.from_server_args(server_args, model_path=path, is_draft_model=True)
        dspark = algorithm == "DSPARK"
        context = nullcontext() if dspark else utils.speculative_moe_backend_context()
        draft = method(config, "stages.0.mlp.experts" if dspark else "model.decoder.mlp.experts", context)
    return {"target": target, "draft": draft, "error": None}


def forked(side, launch, arch):
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.environ.update(launch.get("env", {}))
        try:
            found = side(launch, arch)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the launch's end
            found = {"target": None, "draft": None, "error": " ".join(str(error).split()) or type(error).__name__}
        os.write(write_end, json.dumps(found).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    os.wait()
    return json.loads(text) if text else {"target": None, "draft": None, "error": "the process died"}


def main():
    out = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    simulate.install(request["arch"], 96)
    import sglang.srt.layers.moe.fused_moe_triton
    import sglang.srt.layers.quantization.modelopt_quant
    import sglang.srt.model_loader.loader
    import sglang.srt.server_args  # noqa: F401

    answers = [
        {"plan": forked(planned, launch, request["arch"]), "launch": forked(launched, launch, request["arch"])}
        for launch in request["launches"]
    ]
    os.write(out, json.dumps(answers).encode())
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
