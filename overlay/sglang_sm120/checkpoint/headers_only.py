"""Checkpoints of published models' sizes that consist of a configuration and safetensors headers.

For asking SGLang what it would do: its configuration looks at one expert's dtype, the overlay at one expert of target
and draft; no data is read, and none is on disk.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sglang_sm120.checkpoint import format
from sglang_sm120.checkpoint.format import Layout, Shape

_FLASH = Shape()
_PRO = replace(_FLASH, hidden=7168, intermediate=3072, experts=384, heads=128, q_rank=1536, o_groups=16)
# V4-Flash-0731 is `flash` with DSpark's draft; REAP prunes V4-Flash's routed experts to so many; there are FP8
# conversions of the target that leave the draft.
SIZES = {
    "flash": _FLASH,
    "pro": replace(_PRO, routed_scaling=2.5),
    "v4.1": replace(
        _FLASH, family="v4.1", hidden=5120, intermediate=2304, experts=384, draft_experts=128, draft_top_k=3
    ),
    "mxfp4-draft": replace(_FLASH, draft_format="mxfp4"),
    **{f"reap-{experts}": replace(_FLASH, experts=experts) for experts in (144, 160, 180)},
}


def write(
    directory: Path, kind: str, draft: str, size: str = "flash", layers: int = _FLASH.layers, whole: bool = False
) -> Path:
    """Write one.

    Args:
        kind: `mxfp4`, `hybrid-nvfp4` or `fp8`.
        draft: `nextn` or `dspark`.
        size: of `SIZES`; `v4.1` has a DSpark draft.
        layers: of the target, as `config.json` says.
        whole: write the headers of all routed experts and the tensors by which a draft is known, not of one expert of
            target and draft alone.

    Raises:
        ValueError: kind or draft is none of these.
    """
    return write_shape(directory, replace(SIZES[size], kind=kind, draft=draft, layers=layers), whole)


def write_shape(directory: Path, shape: Shape, whole: bool = False) -> Path:
    """Write one of any shape; arguments as for `write`."""
    directory.mkdir(parents=True, exist_ok=True)
    shards = (
        all_layouts(shape)
        if whole
        else [_experts(shape, "layers.0", shape.kind, 1), _experts(shape, "mtp.0", shape.draft_kind, 1)]
    )
    for file, layout in zip(format.files(directory, len(shards)), shards, strict=True):
        begin = format.header(layout)
        with file.open("wb") as f:
            f.write(begin)
            f.truncate(len(begin) + sum(format.nbytes(*entry) for entry in layout.values()))  # a hole
    format.describe(directory, shape, shards)
    return directory


def all_layouts(shape: Shape) -> list[Layout]:
    """A shard for each block, and one for the embeddings."""
    draft = {f"mtp.{number}": shape.draft_experts or shape.experts for number in range(shape.draft_blocks)}
    shards: list[Layout] = [{"embed.weight": ("BF16", (shape.vocabulary, shape.hidden))}]
    shards += [_experts(shape, f"layers.{number}", shape.kind, shape.experts) for number in range(shape.layers)]
    shards += [_experts(shape, block, shape.draft_kind, experts) for block, experts in draft.items()]
    width = len(shape.watched) if shape.draft == "dspark" else 1
    known = {"nextn": ("e_proj", "h_proj"), "dspark": ("main_proj",)}[shape.draft]
    shards[1 + shape.layers] |= {
        f"mtp.0.{name}.{part}": entry
        for name in known
        for part, entry in format.matrix("fp8", shape.hidden, width * shape.hidden, shape.block).items()
    }
    return shards


def _experts(shape: Shape, block: str, kind: str, count: int) -> Layout:
    return {
        f"{block}.ffn.experts.{number}.{name}.{part}": entry
        for number in range(count)
        for name, (rows, columns) in format.expert_matrices(shape).items()
        for part, entry in format.matrix(kind, rows, columns, shape.block).items()
    }
