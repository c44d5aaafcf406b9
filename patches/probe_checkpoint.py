"""Checkpoints of DeepSeek-V4-Flash's and -Pro's sizes that consist of a configuration and safetensors headers.

For asking SGLang what it would do: its configuration looks at one expert's dtype, the overlay at one expert of target
and draft; no data is read, and none is on disk.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

KINDS = ("hybrid-nvfp4", "mxfp4", "fp8")
_FLASH = {"hidden_size": 4096, "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_attention_heads": 64}
_PRO = {"hidden_size": 7168, "moe_intermediate_size": 3072, "n_routed_experts": 384, "num_attention_heads": 128}
_SIZES = {"flash": _FLASH, "pro": _PRO}
_LAYERS = 3
_WIDTH = {"I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F32": 4}


def write(directory: Path, kind: str, draft: str, size: str = "flash") -> Path:
    """Write one.

    Args:
        kind: of `KINDS`.
        draft: `nextn` or `dspark`.
        size: `flash` or `pro`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = _config(kind, draft, _SIZES[size])
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    blocks = {"layers.0": kind, "mtp.0": "fp8" if kind == "fp8" else "mxfp4"}
    weight_map: dict[str, str] = {}
    for number, (block, layout) in enumerate(blocks.items(), 1):
        file = f"model-{number:05d}-of-{len(blocks):05d}.safetensors"
        header = _expert(f"{block}.ffn.experts.0", layout, config["hidden_size"], config["moe_intermediate_size"])
        _write_header(directory / file, header)
        weight_map |= dict.fromkeys(header, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def _config(kind: str, draft: str, sizes: dict[str, int]) -> dict:
    quantization: dict[str, Any] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
    }
    quantization |= {"weight_block_size": [128, 128]}
    if kind == "hybrid-nvfp4":
        quantization |= {
            "quant_algo": "MIXED_PRECISION",
            "moe_quant_algo": "NVFP4",
            "group_size": 16,
            "ignore": ["mtp.*"],
        }
    config: dict[str, Any] = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "torch_dtype": "bfloat16",
        **sizes,
        "intermediate_size": sizes["moe_intermediate_size"],
        "num_hidden_layers": _LAYERS,
        "num_nextn_predict_layers": 1,
        "num_hash_layers": 1,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "expert_dtype": "fp8" if kind == "fp8" else "fp4",
        "hidden_act": "silu",
        "vocab_size": 129280,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "q_lora_rank": 1024,
        "qk_rope_head_dim": 64,
        "o_lora_rank": 1024,
        "o_groups": 8,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "index_topk": 512,
        "sliding_window": 128,
        "compress_ratios": [0, 4, 128, 0, 0, 0],
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
        "quantization_config": quantization,
    }
    if draft == "dspark":
        config |= {"dspark_block_size": 5, "dspark_markov_rank": 256, "dspark_noise_token_id": 129279}
        config |= {"dspark_target_layer_ids": list(range(_LAYERS))}
    return config


def _expert(prefix: str, layout: str, hidden: int, intermediate: int) -> dict[str, tuple[str, list[int]]]:
    out: dict[str, tuple[str, list[int]]] = {}
    for name, (rows, columns) in {
        "w1": (intermediate, hidden),
        "w2": (hidden, intermediate),
        "w3": (intermediate, hidden),
    }.items():
        if layout == "hybrid-nvfp4":
            out[f"{prefix}.{name}.weight"] = ("U8", [rows, columns // 2])
            out[f"{prefix}.{name}.weight_scale"] = ("F8_E4M3", [rows, columns // 16])
            out |= {f"{prefix}.{name}.{scalar}": ("F32", []) for scalar in ("weight_scale_2", "input_scale")}
        elif layout == "mxfp4":
            out[f"{prefix}.{name}.weight"] = ("I8", [rows, columns // 2])
            out[f"{prefix}.{name}.scale"] = ("F8_E8M0", [rows, columns // 32])
        else:
            out[f"{prefix}.{name}.weight"] = ("F8_E4M3", [rows, columns])
            out[f"{prefix}.{name}.scale"] = ("F8_E8M0", [rows // 128, columns // 128])
    return out


def _write_header(file: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = _WIDTH[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with file.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(f.tell() + at)  # a hole: full size, no blocks
