#!/usr/bin/env python3
"""What a decode step of V4-Flash reads on SM120, family by family, and which kernel SGLang resolves for each; no GPU.

    ./scripts/python scripts/layers/decode_step.py --receipt benchmarks/receipts/sm120-decode-step.json

The installed SGLang resolves a launch on simulated SM120 GPUs, as `plan` does; its flags, switches and functions are
asked, and the tile of its FP8 product is read in its source. Bytes follow from the tensors of `scripts/checkpoints`, in
the type in which SGLang keeps them. `scripts/docs.py` writes docs/DECODE.md from the receipt.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.checkpoints.tensors import HYPER, Block
from sglang_sm120.checkpoint import format, headers_only
from sglang_sm120.checkpoint.format import COMPRESSED, Shape
from sglang_sm120.commands.plan import child, one_rank, simulate
from sglang_sm120.commands.selftest.speed_model import experts_hit
from sglang_sm120.upstream import contracts, server_flags

FLASH = Shape(kind="hybrid-nvfp4", layers=43)
ROWS, CONTEXT = (1, 4, 16, 64), 8192  # tokens of a step; tokens before each of them
KV, INDEX = 584, 132  # bytes of a token's key and value: 448 e4m3, 64 bf16, 8 of scales; of its index key
WINDOW, PICKED = 128, 512  # tokens that attention reads of the window, and of what is compressed
_FP8_SOURCE = "kernels/jit/csrc/gemm/fp8_blockwise/fp8_blockwise_scaled_mm_sm120.cuh"
SWITCHES = (
    "SGLANG_OPT_FP8_WO_A_GEMM", "SGLANG_SM120_FLASHMLA_BACKEND", "SGLANG_OPT_USE_TILELANG_INDEXER",
    "SGLANG_OPT_USE_TILELANG_MHC_PRE", "SGLANG_OPT_USE_TILELANG_MHC_POST", "SGLANG_OPT_FUSE_MHC_POST_PRE",
    "SGLANG_OPT_FUSE_WQA_WKV", "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2",
)  # fmt: skip
FLAGS = ("attention_backend", "dsv4_attn_backend", "kv_cache_dtype", "fp8_gemm_runner_backend", "moe_runner_backend")
# Family -> pattern of a block's tensors, whether tensor parallelism cuts them.
FAMILIES = (
    ("routed experts", r"ffn\.experts\.\d", True),
    ("FP8: q and kv, down", r"attn\.(wq_a|wkv)\.", False),
    ("FP8: q, up", r"attn\.wq_b\.", True),
    ("bf16: output, down (wo_a)", r"attn\.wo_a\.", True),
    ("FP8: output, up (wo_b)", r"attn\.wo_b\.", True),
    ("FP8: shared expert", r"shared_experts", True),
    ("FP8: indexer's q", r"indexer\.wq_b\.", False),
    ("bf16: compressors, indexer's weights", r"compressor|weights_proj", False),
    ("hyper-connections", r"hc_", False),
    ("router", r"ffn\.gate\.weight", False),
)


def family(name: str) -> str | None:
    """Whose bytes a tensor's are; None of what a step does not read whole or what is small."""
    return next((title for title, pattern, _ in FAMILIES if re.search(pattern, name)), None)


def bytes_of_layers() -> dict[str, int]:
    """Bytes of each family over all layers on one GPU; of `routed experts` those of one expert a layer."""
    found: collections.Counter[str] = collections.Counter()
    for ratio in FLASH.ratios[: FLASH.layers]:
        for tensor in Block(FLASH, "", ratio, False, FLASH.kind).tensors:
            title = family(tensor.name)
            size = format.nbytes(tensor.dtype, tensor.shape)
            if title == "routed experts":
                found[title] += size / FLASH.experts
            elif title is not None and "wo_a" in title:  # dequantised when it is loaded
                found[title] += 2 * size if tensor.name.endswith(".weight") else 0
            elif title is not None:
                found[title] += size
    return {title: round(size) for title, size in found.items()}


def cache_bytes(ratio: int) -> tuple[int, int]:
    """Bytes that attention, and that the indexer, read of a layer's cache for a token."""
    if not ratio:
        return WINDOW * KV, 0
    entries = CONTEXT // ratio
    picked = min(entries, PICKED) if ratio == COMPRESSED[0] else entries
    return (WINDOW + picked) * KV, entries * INDEX if ratio == COMPRESSED[0] else 0


def step(tp: int) -> list[dict[str, Any]]:
    """Bytes of each family for each number of rows, on one of `tp` GPUs."""
    whole = bytes_of_layers()
    cut = {title: divided for title, _, divided in FAMILIES}
    caches = [cache_bytes(ratio) for ratio in FLASH.ratios[: FLASH.layers]]
    found = []
    for title, size in whole.items():
        fixed = size / tp if cut[title] else size
        hit = {rows: experts_hit(FLASH.experts, rows * FLASH.top_k) for rows in ROWS}
        each = {rows: round(fixed * (hit[rows] if title == "routed experts" else 1)) for rows in ROWS}
        if title == "hyper-connections":  # the streams: two halves, each read and written
            streams = 2 * 2 * 2 * HYPER * FLASH.hidden * FLASH.layers
            each = {rows: round(fixed + rows * streams) for rows in ROWS}
        found.append({"family": title, "bytes": each})
    for title, which in (("attention's cache", 0), ("indexer's cache", 1)):
        found.append({"family": title, "bytes": {rows: rows * sum(c[which] for c in caches) for rows in ROWS}})
    head = round(2 * FLASH.vocabulary * FLASH.hidden / tp)
    return [*found, {"family": "bf16: head", "bytes": dict.fromkeys(ROWS, head)}]


def programs(tp: int) -> dict[str, list[int]]:
    """CTAs of each FP8 product at decode: one for each 128 weight rows of a rank."""
    f = FLASH
    rows = {
        "q and kv, down": f.q_rank + f.head_dim, "q, up": f.heads * f.head_dim // tp, "output, up (wo_b)": f.hidden,
        "shared expert, gate and up": 2 * f.intermediate // tp, "shared expert, down": f.hidden,
        "indexer's q": f.index_heads * f.index_dim,
    }  # fmt: skip
    return {name: [n, -(-n // 128)] for name, n in rows.items()}


def fp8_tiles() -> list[str]:
    """The lines of SGLang's source that choose the FP8 product's tile for few tokens."""
    root = contracts.source_file("sglang")
    assert root is not None
    text = (root.parent / _FP8_SOURCE).read_text(encoding="utf-8")
    start = text.index("if (m <= 128")
    return [
        line.strip() for line in text[start : start + 400].splitlines() if "m <= 128" in line or "Shape<_128" in line
    ]


def resolved(tp: int) -> dict[str, Any]:
    """What SGLang resolves on simulated SM120 GPUs. Call once in a process."""
    simulate.install("sm120", 96)
    with tempfile.TemporaryDirectory() as directory:
        headers_only.write(Path(directory), FLASH.kind, "nextn", layers=FLASH.layers)
        from sglang.srt.plugins import load_plugins

        load_plugins()
        server_args = child.resolve(["--model-path", directory, "--tp", str(tp)])
        one_rank.publish_as_scheduler(server_args)
        from sglang.srt.environ import envs
        from sglang.srt.layers.quantization import fp8_utils
        from sglang.srt.models.deepseek_common import utils

        fp8_utils.initialize_fp8_gemm_config()
        import torch

        found = {name: str(server_flags.resolved(server_args, name)) for name in FLAGS}
        found |= {name: str(getattr(envs, name).get()) for name in SWITCHES}
        dense = fp8_utils.dispatch_w8a8_block_fp8_linear().__name__
        few = utils.tiny_router_gemm_max_tokens(
            num_experts=FLASH.experts, hidden_size=FLASH.hidden, weight_dtype=torch.bfloat16
        )
    return found | {"fp8 linear": dense, "tiny_gemm up to": few, "fp8 tile": fp8_tiles()}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--receipt", type=Path, required=True)
    options = parser.parse_args()
    import importlib.metadata as metadata

    answer_to = os.dup(1)
    os.dup2(2, 1)
    found = resolved(2)
    receipt = {
        "schema": 1, "kind": "decode_step", "sglang": metadata.version("sglang"), "layers": FLASH.layers,
        "context": CONTEXT, "resolved": found, "programs": {tp: programs(tp) for tp in (1, 2, 8)},
        "steps": {tp: step(tp) for tp in (1, 2, 8)},
    }  # fmt: skip
    options.receipt.write_text(json.dumps(receipt, indent=1) + "\n")
    os.write(answer_to, (json.dumps(found, indent=1) + "\n").encode())
    os._exit(0)  # SGLang leaves threads behind


if __name__ == "__main__":
    sys.exit(main())
