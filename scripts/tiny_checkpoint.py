"""Write a small DeepSeek-V4 checkpoint with the names and dtypes of NVIDIA's hybrid FP8+NVFP4 release.

    python scripts/tiny_checkpoint.py OUT [--experts 8] [--hidden 512] [--intermediate 256] [--seed 0]

The target's routed experts are NVFP4 (U8 bytes, F8_E4M3 scales per 16, F32 scalars), the draft's (`mtp.0`) are MXFP4
(I8 bytes, F8_E8M0 scales per 32), shared experts are block FP8. It holds the embeddings and the MoE part of each block;
attention tensors are left out, so it can be planned and its MoE layers loaded, but not served.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS = 2
FP8_BLOCK = 128


@dataclass(frozen=True)
class Shape:
    """Sizes of the checkpoint; real ones are 256 experts, hidden 4096, intermediate 2048."""

    experts: int = 8
    hidden: int = 512
    intermediate: int = 256
    top_k: int = 2
    vocabulary: int = 512
    seed: int = 0


def config(shape: Shape) -> dict:
    """`config.json` of such a checkpoint."""
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "torch_dtype": "bfloat16",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "moe_intermediate_size": shape.intermediate,
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 1,
        "n_routed_experts": shape.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": shape.top_k,
        "num_hash_layers": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "expert_dtype": "fp4",
        "hidden_act": "silu",
        "vocab_size": shape.vocabulary,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "q_lora_rank": 128,
        "qk_rope_head_dim": 64,
        "o_lora_rank": 64,
        "o_groups": 2,
        "index_head_dim": 128,
        "index_n_heads": 4,
        "index_topk": 512,
        "sliding_window": 128,
        "compress_ratios": [0, 4, 0],
        "compress_rope_theta": 160000.0,
        "rope_theta": 10000.0,
        "max_position_embeddings": 65536,
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
            "quant_algo": "MIXED_PRECISION",
            "moe_quant_algo": "NVFP4",
            "group_size": 16,
            "ignore": ["mtp.*"],
        },
    }


def _bytes(generator: torch.Generator, low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)


def _mxfp4(g: torch.Generator, rows: int, columns: int) -> dict[str, torch.Tensor]:
    # Exponents 2^-7 to 2^-3: with hidden states of unit variance some gates reach the clamp at 10, most do not.
    return {
        "weight": _bytes(g, 0, 256, rows, columns // 2).view(torch.int8),
        "scale": _bytes(g, 120, 125, rows, columns // 32).view(torch.float8_e8m0fnu),
    }


def _nvfp4(g: torch.Generator, rows: int, columns: int) -> dict[str, torch.Tensor]:
    return {
        "weight": _bytes(g, 0, 256, rows, columns // 2),
        "weight_scale": _bytes(g, 0x28, 0x40, rows, columns // 16).view(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(2.0**-6),
        "input_scale": torch.tensor(2.0**-6),
    }


def _fp8(g: torch.Generator, rows: int, columns: int) -> dict[str, torch.Tensor]:
    blocks = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
    return {
        "weight": _bytes(g, 0x20, 0x48, rows, columns).view(torch.float8_e4m3fn),
        "scale": _bytes(g, 116, 120, *blocks).view(torch.float8_e8m0fnu),
    }


def _moe(prefix: str, shape: Shape, routed, g: torch.Generator) -> dict[str, torch.Tensor]:
    """One block's gate, routed and shared experts."""
    sizes = {"w1": (shape.intermediate, shape.hidden), "w2": (shape.hidden, shape.intermediate)}
    sizes["w3"] = sizes["w1"]
    out = {
        f"{prefix}.ffn_norm.weight": torch.ones(shape.hidden, dtype=torch.bfloat16),
        f"{prefix}.ffn.gate.weight": torch.randn(shape.experts, shape.hidden, generator=g).bfloat16() * 0.05,
        f"{prefix}.ffn.gate.bias": torch.randn(shape.experts, generator=g) * 0.05,
    }
    for name, size in sizes.items():
        for expert in range(shape.experts):
            for part, tensor in routed(g, *size).items():
                out[f"{prefix}.ffn.experts.{expert}.{name}.{part}"] = tensor
        for part, tensor in _fp8(g, *size).items():
            out[f"{prefix}.ffn.shared_experts.{name}.{part}"] = tensor
    return out


def write(directory: Path, shape: Shape = Shape()) -> Path:
    """Write the checkpoint, the same bytes for the same shape, and return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(shape.seed)
    rows = (shape.vocabulary, shape.hidden)
    shards = {
        "top": {name: (torch.randn(rows, generator=g) * 0.05).bfloat16() for name in ("embed.weight", "head.weight")}
        | {"norm.weight": torch.ones(shape.hidden, dtype=torch.bfloat16)}
    }
    for layer in range(LAYERS):
        shards[f"layers.{layer}"] = _moe(f"layers.{layer}", shape, _nvfp4, g)
    shards["mtp.0"] = _moe("mtp.0", shape, _mxfp4, g)
    weight_map, total = {}, 0
    for number, tensors in enumerate(shards.values(), 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
        total += sum(t.nbytes for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text(json.dumps(config(shape), indent=1))
    return directory


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name in ("experts", "hidden", "intermediate", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Shape, name))
    arguments = vars(parser.parse_args())
    directory = write(arguments.pop("out"), Shape(**arguments))
    print(f"{directory}: {sum(f.stat().st_size for f in directory.iterdir()) / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
