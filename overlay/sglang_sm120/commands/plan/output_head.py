"""In which type a checkpoint stores the output head, whose matrix SGLang hands to a draft."""

from __future__ import annotations

import json
from pathlib import Path

from sglang_sm120.checkpoint import inspection
from sglang_sm120.checkpoint.inspection import CheckpointError

_NAMES = ("head.weight", "lm_head.weight")


def dtype(directory: Path) -> str | None:
    """As safetensors writes it; None where no header names it. What cannot be read is said when it is inspected."""
    try:
        for file in _files(directory):
            headers = inspection.tensor_headers(file)
            found = next((headers[name]["dtype"] for name in _NAMES if name in headers), None)
            if found is not None:
                return str(found)
    except (CheckpointError, OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _files(directory: Path) -> list[Path]:
    index = directory / inspection.INDEX
    if not index.is_file():
        return sorted(directory.glob("*.safetensors"))
    placed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return [directory / placed[name] for name in _NAMES if name in placed]
