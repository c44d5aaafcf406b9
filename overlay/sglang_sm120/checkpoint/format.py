"""What a DeepSeek-V4 checkpoint says of itself: `config.json`, the tensors of a routed expert, a shard's header.

For the checkpoints that this project writes: those of headers alone, and those of `scripts/` that hold numbers.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("mxfp4", "hybrid-nvfp4", "fp8")  # formats of the target's routed experts
DRAFTS = ("nextn", "dspark")
FAMILIES = ("v4", "v4.1")
BLOCK = 128  # rows and columns that share a scale of an FP8 matrix
COMPRESSED = (4, 128)  # tokens per entry in the two kinds of compressed attention
STAGES = 3  # blocks of a DSpark draft, one for each target layer that it looks at
_SIZE = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "I32": 4}

Layout = dict[str, tuple[str, tuple[int, ...]]]  # tensor name -> dtype and shape, as safetensors writes them


@dataclass(frozen=True)
class Shape:
    """Formats, widths and counts of a checkpoint; the defaults are DeepSeek-V4-Flash's but for the number of layers.

    Attributes:
        kind: of `KINDS`.
        draft_format: of the draft's experts; empty is FP8 in an `fp8` checkpoint and MXFP4 in the others.
        draft: of `DRAFTS`; V4.1 has the second alone.
        family: of `FAMILIES`; V4.1's configuration is nested, and 32 rows and columns share a scale.
        draft_experts, draft_top_k: of a DSpark draft's stages; 0 is the target's.
        cast: NVFP4 experts are a lossless cast of MXFP4 (powers of two throughout), as ModelOpt can write them; else
            their scales and global scales are 1.5 times and two thirds of those, which are none.
    """

    kind: str = "mxfp4"
    draft: str = "nextn"
    draft_format: str = ""
    family: str = "v4"
    layers: int = 3
    experts: int = 256
    hidden: int = 4096
    intermediate: int = 2048
    top_k: int = 6
    heads: int = 64
    head_dim: int = 512
    q_rank: int = 1024
    o_rank: int = 1024
    o_groups: int = 8
    index_heads: int = 64
    index_dim: int = 128
    vocabulary: int = 129280
    markov_rank: int = 256
    cast: bool = False
    routed_scaling: float = 1.5
    draft_experts: int = 0
    draft_top_k: int = 0

    def __post_init__(self) -> None:
        for name, known in (("kind", KINDS), ("draft", DRAFTS), ("family", FAMILIES), ("draft_format", ("", *KINDS))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}")
        for name, least, unit in (
            ("layers", 1, 1), ("experts", self.top_k, 1), ("vocabulary", 512, 1), ("hidden", 128, 128),
            ("intermediate", 32, 32), ("seed", 0, 1),
        ):  # fmt: skip
            value = getattr(self, name, least)
            if value < least or value % unit:
                multiple = f", a multiple of {unit}" if unit > 1 else ""
                raise ValueError(f"{name} is {value}; expected at least {least}{multiple}")

    @property
    def block(self) -> int:
        """Rows and columns that share a scale of an FP8 matrix."""
        return BLOCK if self.family == "v4" else 32

    @property
    def draft_kind(self) -> str:
        """Format of the draft's routed experts."""
        return self.draft_format or ("fp8" if self.kind == "fp8" else "mxfp4")

    @property
    def watched(self) -> list[int]:
        """Target layers whose hidden states a DSpark draft reads: the last ones."""
        return list(range(self.layers))[-STAGES:]

    @property
    def draft_blocks(self) -> int:
        """Transformer blocks of the draft, `mtp.0` and on."""
        return len(self.watched) if self.draft == "dspark" else 1

    @property
    def noise_token(self) -> int:
        """The id that stands in the places which a DSpark draft has to fill."""
        return self.vocabulary - 1

    @property
    def ratios(self) -> list[int]:
        """Tokens per compressed entry, block by block; 0 is a plain sliding window, as in the draft's."""
        body = [COMPRESSED[i % 2] if self.family == "v4" else 0 for i in range(self.layers - 1)]
        return [0, *body] + [0] * self.draft_blocks


def config(shape: Shape) -> dict[str, Any]:
    """`config.json`."""
    text = _text(shape)
    if shape.family == "v4":
        return text
    del text["architectures"]
    quantization = text.pop("quantization_config") | {"expert_dtype": text.pop("expert_dtype")}
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "torch_dtype": "bfloat16",
        "quantization_config": quantization,
        "text_config": text | {"model_type": "deepseek_v41_text", "num_nextn_predict_layers": STAGES},
    }


def _text(shape: Shape) -> dict[str, Any]:
    """The part about the text model, which is all of V4's."""
    yarn = {"type": "yarn", "rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "moe_intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_nextn_predict_layers": 1,
        "n_routed_experts": shape.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": shape.top_k,
        "num_hash_layers": 1,
        "n_hash_layers": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": shape.routed_scaling,
        "swiglu_limit": 10.0,
        "expert_dtype": "fp8" if shape.kind == "fp8" else "fp4",
        "hidden_act": "silu",
        "num_attention_heads": shape.heads,
        "num_key_value_heads": 1,
        "head_dim": shape.head_dim,
        "q_lora_rank": shape.q_rank,
        "qk_rope_head_dim": 64,
        "o_lora_rank": shape.o_rank,
        "o_groups": shape.o_groups,
        "index_head_dim": shape.index_dim,
        "index_n_heads": shape.index_heads,
        "index_topk": 512,
        "sliding_window": 128,
        "compress_ratios": shape.ratios,
        "compress_rope_theta": 160000.0,
        "rope_theta": 10000.0,
        "max_position_embeddings": 65536,
        "rope_scaling": yarn | {"beta_fast": 32, "beta_slow": 1},
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.02,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "use_cache": True,
        "quantization_config": _quantization(shape),
    } | (_dspark(shape) if shape.draft == "dspark" else {})


def _quantization(shape: Shape) -> dict[str, Any]:
    fp8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    fp8 |= {"scale_fmt": "ue8m0", "weight_block_size": [shape.block, shape.block]}
    if shape.kind != "hybrid-nvfp4":
        return fp8
    return fp8 | {
        "quant_algo": "MIXED_PRECISION",
        "moe_quant_algo": "NVFP4",
        "group_size": 16,
        "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],  # as NVIDIA publishes
    }


def _dspark(shape: Shape) -> dict[str, Any]:
    """The keys by which SGLang knows that `mtp.*` is a DSpark draft."""
    own = {"dspark_n_routed_experts": shape.draft_experts, "dspark_num_experts_per_tok": shape.draft_top_k}
    return {key: value for key, value in own.items() if value} | {
        "dspark_block_size": 5,
        "dspark_markov_rank": shape.markov_rank,
        "dspark_noise_token_id": shape.noise_token,
        "dspark_target_layer_ids": shape.watched,
    }


def expert_matrices(shape: Shape) -> dict[str, tuple[int, int]]:
    """Rows and columns of a routed expert's three matrices: gate, down, up."""
    up, down = (shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)
    return {"w1": up, "w2": down, "w3": up}


def matrix(kind: str, rows: int, columns: int, block: int = BLOCK) -> Layout:
    """The tensors of one of an expert's matrices in a format of `KINDS`; `block` as in `Shape`, of FP8."""
    if kind == "fp8":
        blocks = (-(-rows // block), -(-columns // block))
        return {"weight": ("F8_E4M3", (rows, columns)), "scale": ("F8_E8M0", blocks)}
    packed = (rows, columns // 2)
    if kind == "mxfp4":
        return {"weight": ("I8", packed), "scale": ("F8_E8M0", (rows, columns // 32))}
    scalars: Layout = dict.fromkeys(("weight_scale_2", "input_scale"), ("F32", ()))
    return {"weight": ("U8", packed), "weight_scale": ("F8_E4M3", (rows, columns // 16))} | scalars


def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Size of a tensor's data."""
    return math.prod(shape) * _SIZE[dtype]


def header(layout: Layout) -> bytes:
    """What stands in a shard before the data of its tensors, which follow in this order without a gap."""
    document: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in layout.items():
        end = at + nbytes(dtype, shape)
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def files(directory: Path, count: int) -> list[Path]:
    """Where a checkpoint's shards go."""
    return [directory / f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def describe(directory: Path, shape: Shape, layouts: Iterable[Layout]) -> None:
    """Write the index of the shards, and `config.json` last: where it is, the checkpoint is whole."""
    shards = list(layouts)
    weight_map: dict[str, str] = {}
    for file, layout in zip(files(directory, len(shards)), shards, strict=True):
        weight_map |= dict.fromkeys(layout, file.name)
    total = sum(nbytes(*entry) for layout in shards for entry in layout.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text(json.dumps(config(shape), indent=1))
