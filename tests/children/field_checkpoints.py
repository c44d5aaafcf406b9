"""Small checkpoints as the field has them: each expert by header, with names, types or shards as a test wants."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

from sglang_sm120.checkpoint import format, headers_only
from sglang_sm120.checkpoint.format import Shape

SMALL = Shape(layers=3, experts=8, hidden=256, intermediate=128, top_k=2, heads=4, head_dim=128, q_rank=128, o_rank=64)
SMALL = replace(SMALL, o_groups=2, index_heads=4, vocabulary=512, markov_rank=64)


def whole(kind="hybrid-nvfp4", draft="nextn", **sizes):
    """The tensors of a checkpoint: name -> (dtype, shape)."""
    parts = headers_only.all_layouts(replace(SMALL, kind=kind, draft=draft, **sizes))
    return {name: entry for part in parts for name, entry in part.items()}


def write(directory, tensors, kind="hybrid-nvfp4", draft="nextn", index=True, config=None, sizes=None):
    """A shard for each block; `config` are changes of config.json, `sizes` of the shape. Returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    shape = replace(SMALL, kind=kind, draft=draft, **(sizes or {}))
    shards = defaultdict(dict)
    for name, entry in tensors.items():
        shards[".".join(name.removeprefix("model.").split(".")[:2])][name] = entry
    for file, layout in zip(format.files(directory, len(shards)), shards.values(), strict=True):
        begin = format.header(layout)
        with file.open("wb") as f:
            f.write(begin)
            f.truncate(len(begin) + sum(format.nbytes(*entry) for entry in layout.values()))
    format.describe(directory, shape, shards.values())
    if not index:
        (directory / "model.safetensors.index.json").unlink()
    if config:
        file = directory / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return directory


def without(tensors, *fragments):
    """The tensors whose names have none of these in them."""
    return {name: entry for name, entry in tensors.items() if not any(f in name for f in fragments)}


def renamed(tensors, changes):
    """The tensors, with fragments of names replaced."""
    out = {}
    for name, entry in tensors.items():
        for old, new in changes.items():
            name = name.replace(old, new)
        out[name] = entry
    return out


def stored_as(tensors, fragment, dtype):
    """The tensors, with another type where the name has the fragment."""
    return {name: (dtype, shape) if fragment in name else (was, shape) for name, (was, shape) in tensors.items()}


def with_block(tensors, block, kind, source="layers.0"):
    """The tensors, with the experts of a block in another format, in the names of that one."""
    others = whole(kind, "nextn")
    given = {n.replace(f"{source}.", f"{block}."): e for n, e in others.items() if n.startswith(f"{source}.ffn.exp")}
    kept = {n: e for n, e in tensors.items() if not n.startswith(f"{block}.ffn.experts.")}
    return kept | given


HUGGING_FACE = {
    ".ffn.": ".mlp.",
    ".w1.": ".gate_proj.",
    ".w2.": ".down_proj.",
    ".w3.": ".up_proj.",
    "layers.": "model.layers.",
}
