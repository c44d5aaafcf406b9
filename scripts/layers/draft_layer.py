"""Load the draft's MoE layer of a checkpoint, or the target's first, through SGLang and run it without a GPU.

    python scripts/layers/draft_layer.py MODEL [--role draft] [--tp 2] [--ep 1] [--rank 0] [--tokens 6] [--update]

SGLang resolves the launch as if on SM120, builds its own `FusedMoE` for `model.decoder.mlp.experts` (the target's:
`model.layers.0.mlp.experts`), and fills it with the weights code of its own DeepSeek-V4 model; our method prepares the
bytes and the Triton kernel computes them in Triton's interpreter. The result is compared with the float64 oracle on the
same shard, read from the files directly. Prints one JSON document: method, runner, rank, parameters, bytes held and in
the checkpoint, and the errors.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from sglang_sm120.commands.one_runner.build import BLOCKS, PREFIXES, build, experts_of, load_tensors
from sglang_sm120.commands.plan import one_rank, simulate
from sglang_sm120.upstream import server_flags
from sglang_sm120.upstream.server_flags import Role


def _flags(tp: int, ep: int) -> list[str]:
    return ["--tp", str(tp), "--ep-size", str(ep), *server_flags.eagle()]


def resolve(model: Path, tp: int, ep: int, rank: int, role: Role = "draft", flags: Sequence[str] = ()) -> Any:
    """Plugins, flags and configuration of the model in that role, as in the scheduler of a rank."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.server_args import prepare_server_args

    server_args = prepare_server_args(["--model-path", str(model), *_flags(tp, ep), *flags])
    server_flags.resolve(server_args)
    one_rank.publish_as_scheduler(server_args, rank)
    return server_flags.model_config(server_args, draft_path=str(model) if role == "draft" else None)


def load(model: Any, model_config: Any) -> None:
    """What SGLang's default loader does: iterate over the files, load, post-process."""
    import torch
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.loader import DefaultModelLoader

    loader = DefaultModelLoader(LoadConfig())
    # SGLang insists on a place for attention and shared experts, which this model leaves out.
    weights = loader._get_all_weights(model_config, model)
    load_tensors(model, ((name, tensor) for name, tensor in weights if ".ffn.experts." in name), torch.device("cpu"))


def shard(directory: Path, tp: int, ep: int, rank: int, role: Role = "draft") -> tuple[list[Any], int]:
    """The rank's w13, w13_scale, w2, w2_scale straight from the files, as bytes, and its first expert.

    NVFP4 experts have their multipliers after each scale, float32 as in `fp4_moe.prepare_nvfp4`.
    """
    import torch
    from safetensors import safe_open

    config = json.loads((directory / "config.json").read_text())
    weight_map = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    columns = tp // ep  # ranks that share an expert
    count = config["n_routed_experts"] // ep
    first, part = rank // columns * count, rank % columns

    def tensor(expert: int, name: str) -> Any:
        key = f"{BLOCKS[role]}.ffn.experts.{expert}.{name}"
        with safe_open(directory / weight_map[key], "pt") as file:
            whole = file.get_tensor(key)
        axis = 1 if name.startswith("w2") else 0
        return whole.view(torch.uint8).chunk(columns, axis)[part] if whole.dim() else whole

    nvfp4 = f"{BLOCKS[role]}.ffn.experts.0.w1.weight_scale_2" in weight_map
    gate_up, down = [], []
    for kind in ("weight", "weight_scale", "weight_scale_2") if nvfp4 else ("weight", "scale"):
        join = torch.stack if kind == "weight_scale_2" else torch.cat
        experts = range(first, first + count)
        gate_up.append(torch.stack([join([tensor(e, f"{w}.{kind}") for w in ("w1", "w3")]) for e in experts]))
        down.append(torch.stack([tensor(e, f"w2.{kind}") for e in experts]))
    return [*gate_up, *down], first


def compare(layer: Any, weights: list[Any], first_expert: int, config: Any, tokens: int, seed: int) -> float:
    """Relative L2 error of the layer against the float64 oracle on random tokens."""
    import torch
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    from sglang_sm120.kernels.sm120 import fp4_moe

    g = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, config.hidden_size, generator=g).bfloat16()
    logits = torch.randn(tokens, config.n_routed_experts, generator=g)
    scores, ids = torch.nn.functional.softplus(logits).sqrt().topk(config.num_experts_per_tok)
    probabilities = scores / scores.sum(-1, keepdim=True)
    before = x.clone()
    with torch.inference_mode():
        got = layer(x, StandardTopKOutput(probabilities, ids.to(torch.int32), logits))
    if not torch.equal(x, before):
        raise SystemExit("the layer overwrote its input")
    here = (ids >= first_expert) & (ids < first_expert + weights[0].shape[0])
    oracle = fp4_moe.reference.mxfp4_moe if len(weights) == 4 else fp4_moe.reference.nvfp4_moe
    want = oracle(
        x, *weights, torch.where(here, ids - first_expert, -1), probabilities,
        swiglu_limit=config.swiglu_limit, routed_scaling_factor=config.routed_scaling_factor,
    )  # fmt: skip
    return float((got.double() - want).norm() / want.norm())


def run(directory: Path, role: Role, tp: int, ep: int, rank: int, tokens: int, update: bool) -> dict[str, Any]:
    """Build, load, run and compare; with `update`, load the files once more as a runtime weight update does."""
    import torch

    model_config = resolve(directory, tp, ep, rank, role)
    model = build(model_config, role)
    layer, config = experts_of(model), model_config.hf_config
    errors = []
    for seed in range(2 if update else 1):
        load(model, model_config)
        weights, first = shard(directory, tp, ep, rank, role)
        with one_rank.speculative_context() if role == "draft" else nullcontext(), one_rank.simulated_rank():
            errors.append(compare(layer, weights, first, config, tokens, seed))
    return {
        "method": type(layer.quant_method).__name__,
        "runner": one_rank.runner_of(layer),
        "tp": tp,
        "ep": ep,
        "rank": rank,
        "parameters": {n: [str(p.dtype), *p.shape] for n, p in layer.named_parameters()},
        "bytes": sum(p.untyped_storage().nbytes() for n, p in layer.named_parameters() if "input_scale" not in n),
        "checkpoint_bytes": sum(w.nbytes for w in weights),
        "in_place": all(
            t.data_ptr() in {p.data_ptr() for p in layer.parameters()}
            for t in vars(layer.quant_method.weights).values()
            if isinstance(t, torch.Tensor)
        ),
        "error": errors[0],
        "updated_error": errors[1] if update else None,
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--role", choices=tuple(PREFIXES), default="draft", help="whose layer")
    for name, default in (("tp", 2), ("ep", 1), ("rank", 0), ("tokens", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--update", action="store_true", help="load a second time, as a runtime weight update does")
    a = parser.parse_args()
    answer_to = os.dup(1)
    os.dup2(2, 1)  # SGLang's own messages must not mix with the answer
    simulate.install("sm120", memory_gib=96)
    answer = run(a.model, a.role, a.tp, a.ep, a.rank, a.tokens, a.update)
    os.write(answer_to, (json.dumps(answer, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
