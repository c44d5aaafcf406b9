"""Loads whole checkpoints into SGLang's own models: run with a release on PYTHONPATH.

    python load_probe.py < [[name, directory, [flag, ...]], ...] on stdin

For each checkpoint SGLang builds its target and its draft on the CPU, as on SM120, and its loader fills both from the
files. Prints {name: {role: findings}}: the class, the parameters that the files did not fill, how many numbers the
files hold for the model and how many are in the filled parameters, and what SGLang warned of. A parameter is filled if
two loads, into different bytes, leave the same.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.layers import cpu_ranks
from sglang_sm120.checkpoint.inspection import tensor_headers
from sglang_sm120.commands.plan import child as plan_child
from sglang_sm120.commands.plan import one_rank, simulate
from sglang_sm120.upstream import server_flags


def load(model: Any, model_config: Any, byte: int) -> dict[str, Any]:
    """Parameter -> its bytes after a load into parameters whose bytes were all `byte`."""
    import torch
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.loader import DefaultModelLoader

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data.view(-1).view(torch.uint8).fill_(byte)
    model.load_weights(DefaultModelLoader(LoadConfig())._get_all_weights(model_config, model))
    return {n: p.data.detach().contiguous().reshape(-1).view(torch.uint8).clone() for n, p in model.named_parameters()}


def numbers_of(directory: str, draft: bool, keeps_wo_a_scale: bool) -> int:
    """How many numbers (packed bytes, scales, ...) the files hold for a model; some models multiply `wo_a` at once."""
    return sum(
        math.prod(entry["shape"])
        for file in Path(directory).glob("*.safetensors")
        for name, entry in tensor_headers(file).items()
        if name.startswith("mtp.") == draft and (keeps_wo_a_scale or not name.endswith("wo_a.scale"))
    )


def examine(server_args: Any, directory: str, draft: bool) -> dict[str, Any]:
    """Build, load twice, and say what is left over on either side."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    model_config = server_flags.model_config(server_args, draft_path=directory if draft else None)
    cls, name = one_rank.deepseek_class(model_config)
    swaps = draft and name.endswith("NextN")
    with one_rank.speculative_context() if swaps else nullcontext():
        model = cls(model_config.hf_config, one_rank.quantization_config(model_config))
        # What follows the load needs a GPU: warming kernels up, views into a DeepGEMM layout.
        model.post_load_weights = lambda *_args, **_kwargs: None
        model._prewarm_mhc_kernels = lambda: None
        said.clear()
        first, second = load(model, model_config, 0x00), load(model, model_config, 0x3F)
    logging.getLogger().removeHandler(handler)
    filled = {name for name in first if first[name].equal(second[name])}
    return {
        "model": name,
        "not filled": sorted(first.keys() - filled),
        "numbers": numbers_of(directory, draft, any("wo_a.weight_scale" in n for n in first)),
        "filled numbers": sum(p.numel() for n, p in model.named_parameters() if n in filled),
        "warnings": sorted(set(said)),
    }


def answer(directory: str, flags: list[str]) -> dict[str, Any]:
    """One checkpoint, in this process."""
    import torch
    from sglang.srt.plugins import load_plugins

    load_plugins()
    server_args = plan_child.resolve(["--model-path", directory, *flags])
    one_rank.publish_as_scheduler(server_args)
    torch.set_default_dtype(torch.bfloat16)
    torch.cuda.Stream = torch.cuda.Event = lambda *_args, **_kwargs: SimpleNamespace()
    with tempfile.TemporaryDirectory() as meeting:
        cpu_ranks.start_groups(1, 0, f"file://{meeting}/store", 60)
    with cpu_ranks.on_the_cpu():
        return {role: examine(server_args, directory, role == "draft") for role in ("target", "draft")}


def fork(directory: str, flags: list[str]) -> Any:
    """One checkpoint, in a child process."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.close(read_end)
        with os.fdopen(write_end, "w") as pipe:
            json.dump(answer(directory, flags), pipe)
        sys.stderr.flush()
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    os.wait()
    return json.loads(text) if text else "the child died"


def main() -> None:
    """All checkpoints."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    simulate.install("sm120", memory_gib=96)
    import sglang.srt.layers.moe.fused_moe_triton
    import sglang.srt.layers.quantization.modelopt_quant
    import sglang.srt.model_loader.loader
    import sglang.srt.server_args  # noqa: F401

    # Not the models: they read SGLang's environment when they are imported, and resolving a launch sets it.

    answers = {name: fork(directory, flags) for name, directory, flags in asked}
    os.write(answer_to, json.dumps(answers).encode())
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
