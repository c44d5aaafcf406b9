"""Write a random DeepSeek-V4 checkpoint that SGLang serves: real widths, few layers, with its NextN draft.

    python scripts/make_checkpoint.py OUT [--kind mxfp4|hybrid-nvfp4] [--layers 3] [--experts 32] [--small] [--seed 0]

Every tensor of the published layout is there, so SGLang's own loader and its checks run on it. The same arguments give
the same bytes, whatever the number of threads. Only numpy is needed.

* Both kinds hold the same numbers: the NVFP4 experts of `hybrid-nvfp4` are the MXFP4 ones with each scale written twice
  (16 values a scale instead of 32) as a power of two in e4m3. So servers of both kinds can be compared with each other.
* Answers depend on the experts, and the draft agrees with the target often, not always: the head holds each token's
  embedding, weakened, in the row of its successor; layers disturb that; the draft's `e_proj` is the identity.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("mxfp4", "hybrid-nvfp4")
BLOCK = 128  # rows and columns that share a scale of an FP8 matrix
HYPER = 4  # copies of the residual stream (hyper-connections)
COMPRESSED = (4, 128)  # tokens per entry in the two kinds of compressed attention
SUCCESSOR = 7919  # the head's row of token t's embedding is t + this, modulo the vocabulary
_SIZE = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "I32": 4}
# Root mean squares of the random codes: e2m1 over all 16, e4m3 over the 32 magnitudes from 0.25 to 3.75.
_RMS_E2M1, _RMS_E4M3 = 2.927, 1.616


@dataclass(frozen=True)
class Shape:
    """Sizes; the defaults are DeepSeek-V4-Flash's but for layers, experts and vocabulary."""

    kind: str = "mxfp4"
    layers: int = 3
    experts: int = 32
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
    vocabulary: int = 16384
    signal: float = 0.12  # share of the successor's embedding in the head
    seed: int = 0

    @property
    def ratios(self) -> list[int]:
        """Tokens per compressed entry, layer by layer; 0 is a plain sliding window, as the draft's."""
        return [0] + [COMPRESSED[i % 2] for i in range(self.layers - 1)] + [0]


SMALL = Shape(layers=2, experts=8, hidden=512, intermediate=256, top_k=2, heads=4, head_dim=128, q_rank=128, o_rank=64)
SMALL = replace(SMALL, o_groups=2, index_heads=4, vocabulary=512)


def config(shape: Shape) -> dict[str, Any]:
    """`config.json`."""
    quantization: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    quantization |= {"scale_fmt": "ue8m0", "weight_block_size": [BLOCK, BLOCK]}
    if shape.kind == "hybrid-nvfp4":
        quantization |= {
            "quant_algo": "MIXED_PRECISION",
            "moe_quant_algo": "NVFP4",
            "group_size": 16,
            "ignore": ["mtp.*"],
        }
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
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "expert_dtype": "fp4",
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
        "hc_mult": HYPER,
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
        "quantization_config": quantization,
    }


def tokenizer(vocabulary: int) -> dict[str, dict[str, Any]]:
    """Files of a tokenizer that spells text in bytes; ids beyond the bytes are read as `t300 `."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    letters = [chr(b) for b in printable] + [chr(256 + n) for n in range(len(others))]  # as byte-level BPE writes bytes
    words = {"<s>": 0, "</s>": 1} | {letter: 2 + n for n, letter in enumerate(letters)}
    words |= {f"t{n}{chr(256 + others.index(0x20))}": n for n in range(len(words), vocabulary)}
    special = [{"id": n, "content": w, "special": True} for w, n in (("<s>", 0), ("</s>", 1))]
    for token in special:
        token |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": words, "merges": []}
    fast = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": model,
    }
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    return {"tokenizer.json": fast, "tokenizer_config.json": about | {"model_max_length": 65536}}


Fill = Callable[[np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Tensor:
    """One tensor of a shard; `source` names the random stream, so that equal sources give equal bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: Fill
    source: str

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * _SIZE[self.dtype]

    def data(self, seed: int) -> np.ndarray:
        """The values, in the tensor's own bytes."""
        key = hashlib.sha256(f"{seed}/{self.source}".encode()).digest()[:16]
        values = self.fill(np.random.Generator(np.random.PCG64(int.from_bytes(key, "little"))))
        assert values.nbytes == self.nbytes, (self.name, values.shape, self.shape)
        return values


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Round to nearest, ties to even; the result is the upper half of the float32."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _bytes(g: np.random.Generator, *shape: int) -> np.ndarray:
    return np.frombuffer(g.bytes(int(np.prod(shape))), dtype=np.uint8).reshape(shape)


def _normal(name: str, size: tuple[int, ...], deviation: float, dtype: str = "F32") -> Tensor:
    """Normal values of mean 0."""

    def fill(g: np.random.Generator) -> np.ndarray:
        values = g.standard_normal(size, dtype=np.float32) * np.float32(deviation)
        return bfloat16(values) if dtype == "BF16" else values

    return Tensor(name, dtype, size, fill, name)


class Block:
    """The tensors of one transformer block, target or draft."""

    def __init__(self, shape: Shape, prefix: str, ratio: int, hashed: bool, experts_as: str) -> None:
        self.shape, self.prefix, self.tensors = shape, prefix, list[Tensor]()
        self._attention(ratio)
        self._experts(hashed, experts_as)
        mix = (2 + HYPER) * HYPER
        for half in ("attn", "ffn"):
            self.normal(f"hc_{half}_fn", "F32", (mix, HYPER * shape.hidden), 0.1 / (HYPER * shape.hidden) ** 0.5)
            self.normal(f"hc_{half}_base", "F32", (mix,), 0.1)
            self.normal(f"hc_{half}_scale", "F32", (3,), 0.1)
            self.ones(f"{half}_norm.weight", shape.hidden)

    def add(self, name: str, dtype: str, size: tuple[int, ...], fill: Fill, source: str = "") -> None:
        """One tensor; its stream is named after it unless `source` names another."""
        name = self.prefix + name
        self.tensors.append(Tensor(name, dtype, size, fill, self.prefix + source if source else name))

    def normal(self, name: str, dtype: str, size: tuple[int, ...], deviation: float) -> None:
        """Normal values of mean 0."""
        self.tensors.append(_normal(self.prefix + name, size, deviation, dtype))

    def ones(self, name: str, size: int, dtype: str = "BF16") -> None:
        """A norm's weight."""
        one = np.ones(size, dtype=np.float32)
        self.add(name, dtype, (size,), lambda _g: bfloat16(one) if dtype == "BF16" else one)

    def fp8(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        """A block-FP8 matrix that multiplies the size of unit inputs by about `gain`."""
        exponent = round(np.log2(gain / (_RMS_E4M3 * columns**0.5)))
        blocks = (-(-rows // BLOCK), -(-columns // BLOCK))

        def codes(g: np.random.Generator) -> np.ndarray:
            random = _bytes(g, rows, columns)
            return (random & 0x80) | (0x28 + (random & 0x1F))

        self.add(f"{name}.weight", "F8_E4M3", (rows, columns), codes)
        self.add(f"{name}.scale", "F8_E8M0", blocks, lambda _g: np.full(blocks, 127 + exponent, dtype=np.uint8))

    def identity(self, name: str, size: int, value: float) -> None:
        """A block-FP8 multiple of the identity; `value` is a power of two, or 0."""
        blocks = (-(-size // BLOCK),) * 2
        exponent = 127 + round(np.log2(value)) if value else 127
        diagonal = 0x38 if value else 0  # e4m3 for 1
        self.add(f"{name}.weight", "F8_E4M3", (size, size), lambda _g: np.eye(size, dtype=np.uint8) * diagonal)
        self.add(f"{name}.scale", "F8_E8M0", blocks, lambda _g: np.full(blocks, exponent, dtype=np.uint8))

    def _attention(self, ratio: int) -> None:
        s, a = self.shape, "attn."
        self.fp8(f"{a}wq_a", s.q_rank, s.hidden)
        self.fp8(f"{a}wq_b", s.heads * s.head_dim, s.q_rank)
        self.fp8(f"{a}wkv", s.head_dim, s.hidden)
        self.fp8(f"{a}wo_a", s.o_groups * s.o_rank, s.heads * s.head_dim // s.o_groups)
        self.fp8(f"{a}wo_b", s.hidden, s.o_groups * s.o_rank, gain=0.5)
        self.ones(f"{a}q_norm.weight", s.q_rank)
        self.ones(f"{a}kv_norm.weight", s.head_dim)
        self.normal(f"{a}attn_sink", "F32", (s.heads,), 0.1)
        if ratio:
            self._compressor(f"{a}compressor.", s.head_dim, ratio)
        if ratio == COMPRESSED[0]:
            self._compressor(f"{a}indexer.compressor.", s.index_dim, ratio)
            self.fp8(f"{a}indexer.wq_b", s.index_heads * s.index_dim, s.q_rank)
            self.normal(f"{a}indexer.weights_proj.weight", "BF16", (s.index_heads, s.hidden), s.hidden**-0.5)

    def _compressor(self, name: str, dim: int, ratio: int) -> None:
        hidden = self.shape.hidden
        width = 2 * dim if ratio == COMPRESSED[0] else dim  # windows of the finer kind overlap
        self.normal(f"{name}wkv.weight", "BF16", (width, hidden), hidden**-0.5)
        self.normal(f"{name}wgate.weight", "BF16", (width, hidden), hidden**-0.5)
        self.normal(f"{name}ape", "F32", (ratio, width), 0.1)
        self.ones(f"{name}norm.weight", dim, "F32")

    def _experts(self, hashed: bool, experts_as: str) -> None:
        s, f = self.shape, "ffn."
        self.normal(f"{f}gate.weight", "BF16", (s.experts, s.hidden), s.hidden**-0.5)
        if hashed:
            self.add(f"{f}gate.tid2eid", "I32", (s.vocabulary, s.top_k), self._experts_of_tokens)
        else:
            self.normal(f"{f}gate.bias", "F32", (s.experts,), 0.05)
        # Pre-activations of deviation 3, so that some reach the clamp at 10; outputs half the residual.
        up, down = (s.intermediate, s.hidden, 3.0), (s.hidden, s.intermediate, 0.07)
        parts = {"w1": up, "w2": down, "w3": up}
        write = self._nvfp4 if experts_as == "hybrid-nvfp4" else self._mxfp4
        for part, (rows, columns, gain) in parts.items():
            exponent = round(np.log2(gain / (_RMS_E2M1 * 1.6 * columns**0.5)))  # 1.6: mean size of the random scales
            for expert in range(s.experts):
                write(f"{f}experts.{expert}.{part}", rows, columns, exponent)
            self.fp8(f"{f}shared_experts.{part}", rows, columns, gain)

    def _experts_of_tokens(self, g: np.random.Generator) -> np.ndarray:
        first = g.integers(0, self.shape.experts, (self.shape.vocabulary, 1))
        return ((first + np.arange(self.shape.top_k)) % self.shape.experts).astype(np.int32)

    def _mxfp4(self, name: str, rows: int, columns: int, exponent: int) -> None:
        self.add(f"{name}.weight", "I8", (rows, columns // 2), lambda g: _bytes(g, rows, columns // 2))
        groups = (rows, columns // 32)
        self.add(f"{name}.scale", "F8_E8M0", groups, lambda g: (_bytes(g, *groups) & 1) + np.uint8(127 + exponent))

    def _nvfp4(self, name: str, rows: int, columns: int, exponent: int) -> None:
        self.add(f"{name}.weight", "U8", (rows, columns // 2), lambda g: _bytes(g, rows, columns // 2))
        groups = (rows, columns // 32)

        def scales(g: np.random.Generator) -> np.ndarray:
            return np.repeat(((_bytes(g, *groups) & 1) << 3) + np.uint8(0x38), 2, axis=1)  # 1 or 2 in e4m3

        whole = np.array(2.0**exponent, dtype=np.float32)
        self.add(f"{name}.weight_scale", "F8_E4M3", (rows, columns // 16), scales, f"{name}.scale")
        self.add(f"{name}.weight_scale_2", "F32", (), lambda _g: whole)
        self.add(f"{name}.input_scale", "F32", (), lambda _g: np.array(2.0**-6, dtype=np.float32))


def _top(shape: Shape) -> list[Tensor]:
    """Embeddings, head and what stands between the last block and the head."""
    rows = (shape.vocabulary, shape.hidden)

    def embedding(g: np.random.Generator) -> np.ndarray:
        return g.standard_normal(rows, dtype=np.float32)

    def head(g: np.random.Generator) -> np.ndarray:
        own = np.random.Generator(np.random.PCG64(int(g.integers(2**63))))
        values = np.roll(embedding(g_of_embedding()), SUCCESSOR, axis=0)
        return bfloat16(
            (values * np.float32(shape.signal) + own.standard_normal(rows, dtype=np.float32)) * np.float32(0.02)
        )

    def g_of_embedding() -> np.random.Generator:
        key = hashlib.sha256(f"{shape.seed}/embed.weight".encode()).digest()[:16]
        return np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))

    one = bfloat16(np.ones(shape.hidden))
    return [
        Tensor("embed.weight", "BF16", rows, lambda g: bfloat16(embedding(g)), "embed.weight"),
        Tensor("head.weight", "BF16", rows, head, "head.weight"),
        Tensor("norm.weight", "BF16", (shape.hidden,), lambda _g: one, "norm.weight"),
        *_hyper_head(shape, ""),
    ]


def _hyper_head(shape: Shape, prefix: str) -> list[Tensor]:
    small = (HYPER, HYPER * shape.hidden)
    sizes = {"fn": (small, 0.1 / small[1] ** 0.5), "base": ((HYPER,), 0.1), "scale": ((1,), 0.1)}
    return [_normal(f"{prefix}hc_head_{name}", size, deviation) for name, (size, deviation) in sizes.items()]


def _draft(shape: Shape) -> list[Tensor]:
    """The NextN block: MXFP4 experts in every kind, the next token's embedding passed through."""
    block = Block(shape, "mtp.0.", 0, hashed=False, experts_as="mxfp4")
    block.identity("e_proj", shape.hidden, 1.0)
    block.identity("h_proj", shape.hidden, 0.125)
    for name in ("enorm", "hnorm", "norm"):
        block.ones(f"{name}.weight", shape.hidden)
    return block.tensors + _hyper_head(shape, "mtp.0.")


def shards(shape: Shape) -> Iterator[list[Tensor]]:
    """The tensors, shard by shard: one for the ends, one for each block, one for the draft."""
    yield _top(shape)
    for layer, ratio in enumerate(shape.ratios[:-1]):
        yield Block(shape, f"layers.{layer}.", ratio, layer == 0, shape.kind).tensors
    yield _draft(shape)


def _write_shard(file: Path, tensors: list[Tensor], seed: int) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        ends = [offset, offset + tensor.nbytes]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": ends}
        offset = ends[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            out.write(tensor.data(seed).tobytes())


def write(directory: Path, shape: Shape, threads: int = 8) -> Path:
    """Write the checkpoint and return its directory.

    Raises:
        ValueError: the kind is none of `KINDS`.
    """
    if shape.kind not in KINDS:
        raise ValueError(f"kind is {shape.kind!r}; expected one of {', '.join(KINDS)}")
    directory.mkdir(parents=True, exist_ok=True)
    parts = list(shards(shape))
    weight_map, jobs = {}, []
    for number, tensors in enumerate(parts, 1):
        file = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        weight_map |= dict.fromkeys((t.name for t in tensors), file)
        jobs.append((directory / file, tensors, shape.seed))
    with ThreadPoolExecutor(threads) as pool:
        for job in [pool.submit(_write_shard, *j) for j in jobs]:
            job.result()
    index = {"metadata": {"total_size": sum(t.nbytes for part in parts for t in part)}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, document in tokenizer(shape.vocabulary).items():
        (directory / name).write_text(json.dumps(document))
    (directory / "config.json").write_text(json.dumps(config(shape), indent=1))
    return directory


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="mxfp4")
    parser.add_argument("--small", action="store_true", help="widths of a test, not of a real model")
    parser.add_argument("--threads", type=int, default=8)
    for name in ("layers", "experts", "vocabulary", "seed"):
        parser.add_argument(f"--{name}", type=int)
    a = vars(parser.parse_args())
    out, threads, shape = a.pop("out"), a.pop("threads"), SMALL if a.pop("small") else Shape()
    directory = write(out, replace(shape, **{k: v for k, v in a.items() if v is not None}), threads)
    print(f"{directory}: {sum(f.stat().st_size for f in directory.iterdir()) / 2**20:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
