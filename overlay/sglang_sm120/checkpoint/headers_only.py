"""Checkpoints of DeepSeek-V4-Flash's and -Pro's sizes that consist of a configuration and safetensors headers.

For asking SGLang what it would do: its configuration looks at one expert's dtype, the overlay at one expert of target
and draft; no data is read, and none is on disk.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sglang_sm120.checkpoint import format
from sglang_sm120.checkpoint.format import Layout, Shape

_FLASH = Shape()
_PRO = replace(_FLASH, hidden=7168, intermediate=3072, experts=384, heads=128)
_SIZES = {"flash": _FLASH, "pro": _PRO}


def write(directory: Path, kind: str, draft: str, size: str = "flash", layers: int = _FLASH.layers) -> Path:
    """Write one.

    Args:
        kind: `mxfp4`, `hybrid-nvfp4` or `fp8`.
        draft: `nextn` or `dspark`.
        size: `flash` or `pro`.
        layers: of the target, as `config.json` says; only the first one's headers are written.

    Raises:
        ValueError: kind or draft is none of these.
    """
    return write_shape(directory, replace(_SIZES[size], kind=kind, draft=draft, layers=layers))


def write_shape(directory: Path, shape: Shape) -> Path:
    """Write one of any shape."""
    directory.mkdir(parents=True, exist_ok=True)
    kind = shape.kind
    shards = [_expert(f"{b}.ffn.experts.0", k, shape) for b, k in (("layers.0", kind), ("mtp.0", shape.draft_kind))]
    for file, layout in zip(format.files(directory, len(shards)), shards, strict=True):
        begin = format.header(layout)
        with file.open("wb") as f:
            f.write(begin)
            f.truncate(len(begin) + sum(format.nbytes(*entry) for entry in layout.values()))  # a hole
    format.describe(directory, shape, shards)
    return directory


def _expert(prefix: str, kind: str, shape: Shape) -> Layout:
    return {
        f"{prefix}.{name}.{part}": entry
        for name, (rows, columns) in format.expert_matrices(shape).items()
        for part, entry in format.matrix(kind, rows, columns).items()
    }
