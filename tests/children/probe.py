"""Real SGLang on simulated GPUs, many launches from one import.

Reads {"arch", "launches": [{"model", "flags", "env", "before_plugins"}], "identity": bool} on stdin, forks a child
for each launch after importing SGLang once, and prints a list of answers. A launch is what `commands.plan.child`
does; with `before_plugins` the flags are resolved before plugins load, as a program that calls `run_server` does.
"""

import json
import os
import sys
from dataclasses import asdict

from sglang_sm120.commands.plan import child as plan_child
from sglang_sm120.commands.plan import layers, one_rank, simulate
from sglang_sm120.commands.plan.document import Request
from sglang_sm120.patching import records
from sglang_sm120.upstream import contracts, server_flags


def targets():
    """Everything that a patch could change, by identity."""
    import importlib

    from sglang.srt.arg_groups import model_override_base, resolution_hooks
    from sglang.srt.layers.moe import utils
    from sglang.srt.server_args import MOE_RUNNER_BACKEND_CHOICES

    from sglang_sm120.patches import PATCHES

    seen = {}
    for patch in PATCHES:
        for target in patch.targets:
            if contracts.find(target.module, target.qualname) is None:
                continue  # of another release
            found = importlib.import_module(target.module)
            for part in target.qualname.split("."):
                found = vars(found)[part]
            seen[str(target)] = id(found)
    seen["providers"] = {k: [id(f) for f in v] for k, v in model_override_base._MODEL_OVERRIDE_FNS.items()}
    seen["hooks"] = {k: len(v) for k, v in resolution_hooks._HOOKS.items()}
    seen["choices"] = list(MOE_RUNNER_BACKEND_CHOICES)
    seen["names"] = sorted(utils._REGISTERED_MOE_RUNNER_BACKEND_NAMES)
    return seen


def identity():
    """What `register()` changed."""
    from sglang_sm120.plugin import register

    before = targets()
    register()
    after = targets()
    changed = sorted(k for k in before if before[k] != after[k])
    return {"changed": changed, "states": {n: str(s.status) for n, s in records.STATES.items()}}


def resolved_too_early(launch):
    """A target layer, where the flags were resolved before any plugin was loaded."""
    import torch
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    server_args = prepare_server_args(["--model-path", launch["model"], *launch["flags"]])
    server_flags.resolve(server_args)
    load_plugins()
    one_rank.publish_as_scheduler(server_args)
    config = server_flags.model_config(server_args)
    with torch.device("meta"):
        FusedMoE(
            layer_id=0,
            params_dtype=torch.bfloat16,
            quant_config=one_rank.quantization_config(config),
            prefix="model.layers.0.mlp.experts",
            **asdict(layers.shape_of(config)),
        )


def answer(request, launch):
    os.environ.update(launch.get("env", {}))
    try:
        if request.get("identity"):
            return identity()
        if launch.get("before_plugins"):
            resolved_too_early(launch)
            return {"errors": []}
        asked = Request(model=str(launch["model"]), flags=tuple(launch["flags"]), arch=request["arch"])
        return asdict(plan_child.decide(asked))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the answer of the child
        return {"errors": [f"{type(error).__name__}: {error}"]}


def main():
    out = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    if request["arch"] != "none":
        simulate.install(request["arch"], 96)
    import sglang.srt.layers.moe.fused_moe_triton
    import sglang.srt.layers.quantization.modelopt_quant
    import sglang.srt.model_loader.loader
    import sglang.srt.server_args  # noqa: F401

    answers = []
    for launch in request["launches"]:
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            os.write(write_end, json.dumps(answer(request, launch), default=str).encode())
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            text = pipe.read()
        os.wait()
        answers.append(json.loads(text) if text else {"errors": ["the child died"]})
    os.write(out, json.dumps(answers).encode())
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
