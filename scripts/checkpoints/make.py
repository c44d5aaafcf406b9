"""Write a random DeepSeek-V4 checkpoint that SGLang serves: real widths, few layers, with its draft.

    python scripts/checkpoints/make.py OUT [--kind mxfp4|hybrid-nvfp4|fp8] [--draft nextn|dspark] [--layers N]
                                      [--draft-format mxfp4|fp8] [--experts 32] [--cast] [--small] [--seed 0]

Every tensor of the published layout is there, so SGLang's own loader and its checks run on it. The same arguments give
the same bytes, whatever the number of threads. Beside this package only numpy is needed. Without `--layers` there are
three, with `--small` two, with a DSpark draft four.

* All kinds hold the same numbers: e2m1 codes times one of two powers of two for 32 of them. `hybrid-nvfp4` has each
  scale twice (16 values a scale) in e4m3, times 1.5, and global scales of two thirds, so the numbers differ by 6e-8;
  with `--cast` both are powers of two, as in a lossless cast of MXFP4. `fp8` has the products in e4m3, one scale for
  128x128 of them. So servers of different kinds can be compared with each other.
* Answers depend on the experts, and the draft agrees with the target often, not always: the head holds each token's
  embedding, weakened, in the row of its successor, and layers disturb that. The NextN draft's `e_proj` is the identity.
  The DSpark draft's Markov head holds the successors once more, since its later places see only what was proposed
  before them.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.checkpoints.tensors import Block, Stream, Tensor, bfloat16, hyper_head, normal, ones, streams
from sglang_sm120.checkpoint import format
from sglang_sm120.checkpoint.format import DRAFTS, KINDS

SUCCESSOR = 7919  # the head's row of token t's embedding is t + this, modulo the vocabulary
# Logit that the Markov head gives a successor. The head's logits have deviation 1.3, so their maximum over 16384 tokens
# that are no successor is about 5.
MARKOV_LOGIT = 8.0
# With DSpark SGLang first selects target layers by DFlash's rule, which fewer have no room for, and only then takes
# those that the checkpoint lists.
DSPARK_LAYERS = 4


@dataclass(frozen=True)
class Shape(format.Shape):
    """Sizes and what the numbers depend on; few experts and a short vocabulary unless told otherwise."""

    experts: int = 32
    vocabulary: int = 16384
    signal: float = 0.12  # share of the successor's embedding in the head
    seed: int = 0


SMALL = Shape(layers=2, experts=8, hidden=512, intermediate=256, top_k=2, heads=4, head_dim=128, q_rank=128, o_rank=64)
SMALL = replace(SMALL, o_groups=2, index_heads=4, vocabulary=512, markov_rank=64)


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


def _top(shape: Shape) -> list[Tensor]:
    """Embeddings, head and what stands between the last block and the head."""
    rows = (shape.vocabulary, shape.hidden)

    def embedding(stream: Stream) -> np.ndarray:
        return stream("embed.weight").standard_normal(rows, dtype=np.float32)

    def head(stream: Stream) -> np.ndarray:
        own = np.random.Generator(np.random.PCG64(int(stream("head.weight").integers(2**63))))
        values = np.roll(embedding(stream), SUCCESSOR, axis=0)
        if shape.draft == "dspark":  # nothing follows the noise token, or the draft would propose that everywhere
            values[(shape.noise_token + SUCCESSOR) % shape.vocabulary] = 0
        return bfloat16(
            (values * np.float32(shape.signal) + own.standard_normal(rows, dtype=np.float32)) * np.float32(0.02)
        )

    return [
        Tensor("embed.weight", "BF16", rows, lambda stream: bfloat16(embedding(stream))),
        Tensor("head.weight", "BF16", rows, head),
        ones("norm.weight", shape.hidden),
        *hyper_head(shape),
    ]


def _nextn(shape: Shape) -> list[list[Tensor]]:
    """The NextN block: the next token's embedding passed through."""
    block = Block(shape, "mtp.0.", 0, hashed=False, kind=shape.draft_kind)
    block.identity("e_proj", shape.hidden, 1.0)
    block.identity("h_proj", shape.hidden, 0.125)
    for name in ("enorm", "hnorm", "norm"):
        block.ones(f"{name}.weight", shape.hidden)
    return [block.tensors + hyper_head(shape, "mtp.0.")]


def _dspark(shape: Shape) -> list[list[Tensor]]:
    """The stages of a DSpark draft; the first reads the target's layers, the last has the heads."""
    own = replace(shape, experts=shape.draft_experts or shape.experts, top_k=shape.draft_top_k or shape.top_k)
    stages = [
        Block(own, f"mtp.{stage}.", 0, hashed=False, kind=shape.draft_kind) for stage in range(shape.draft_blocks)
    ]
    stages[0].fp8("main_proj", shape.hidden, shape.hidden * len(shape.watched))
    stages[0].ones("main_norm.weight", shape.hidden)
    stages[-1].ones("norm.weight", shape.hidden)
    return [*(stage.tensors for stage in stages[:-1]), stages[-1].tensors + _dspark_heads(shape, stages[-1].prefix)]


def _dspark_heads(shape: Shape, prefix: str) -> list[Tensor]:
    size = (shape.vocabulary, shape.markov_rank)
    embed, project = (f"{prefix}markov_head.markov_{name}.weight" for name in ("w1", "w2"))

    def successors(stream: Stream) -> np.ndarray:
        rows = np.roll(stream(embed).standard_normal(size, dtype=np.float32), SUCCESSOR, axis=0)
        return bfloat16(rows * np.float32(MARKOV_LOGIT / shape.markov_rank))

    features = shape.hidden + shape.markov_rank
    return [
        *hyper_head(shape, prefix),
        normal(embed, size, 1.0, "BF16"),
        Tensor(project, "BF16", size, successors),
        normal(f"{prefix}confidence_head.proj.weight", (1, features), features**-0.5),
    ]


def shards(shape: Shape) -> list[list[Tensor]]:
    """The tensors, shard by shard: one for the ends, one for each block, one for each block of the draft."""
    blocks = [
        Block(shape, f"layers.{layer}.", shape.ratios[layer], layer == 0, shape.kind).tensors
        for layer in range(shape.layers)
    ]
    return [_top(shape), *blocks, *(_dspark(shape) if shape.draft == "dspark" else _nextn(shape))]


def _write_shard(file: Path, tensors: list[Tensor], layout: format.Layout, seed: int) -> None:
    stream = streams(seed)
    with file.open("wb") as out:
        out.write(format.header(layout))
        for tensor in tensors:
            out.write(tensor.data(stream).tobytes())


def write_tensors(directory: Path, shape: Shape, parts: list[list[Tensor]], threads: int = 8) -> Path:
    """Write these shards, their index and `config.json`; return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    layouts: list[format.Layout] = [{t.name: (t.dtype, t.shape) for t in part} for part in parts]
    names = format.files(directory, len(parts))
    with ThreadPoolExecutor(threads) as pool:
        jobs = zip(names, parts, layouts, strict=True)
        for written in [pool.submit(_write_shard, *job, shape.seed) for job in jobs]:
            written.result()
    format.describe(directory, shape, layouts)
    return directory


def write(directory: Path, shape: Shape, threads: int = 8) -> Path:
    """Write the checkpoint and return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, document in tokenizer(shape.vocabulary).items():
        (directory / name).write_text(json.dumps(document))
    return write_tensors(directory, shape, shards(shape), threads)


def served_layers(draft: str, layers: int | None) -> int | None:
    """Layers with which SGLang serves that draft: those asked for, or None for the shape's own.

    Raises:
        ValueError: it would end on so few.
    """
    if draft != "dspark":
        return layers
    if layers is not None and layers < DSPARK_LAYERS:
        raise ValueError(f"layers is {layers}; expected at least {DSPARK_LAYERS} with a dspark draft")
    return layers or DSPARK_LAYERS


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="mxfp4")
    parser.add_argument("--draft", choices=DRAFTS, default="nextn")
    parser.add_argument("--draft-format", choices=KINDS, help="of the draft's experts, where it is not the usual one")
    parser.add_argument("--cast", action="store_true", help="NVFP4 as a lossless cast of MXFP4")
    parser.add_argument("--small", action="store_true", help="widths of a test, not of a real model")
    parser.add_argument("--threads", type=int, default=8)
    for name in ("layers", "experts", "vocabulary", "seed"):
        parser.add_argument(f"--{name}", type=int)
    a = vars(parser.parse_args())
    out, threads, shape = a.pop("out"), a.pop("threads"), SMALL if a.pop("small") else Shape()
    try:
        a["layers"] = served_layers(a["draft"], a["layers"])
        shape = replace(shape, **{k: v for k, v in a.items() if v is not None})
        directory = write(out, shape, threads)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"{directory}: {sum(f.stat().st_size for f in directory.iterdir()) / 2**20:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
