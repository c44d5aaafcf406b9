"""Whether gate and up of a checkpoint's NVFP4 experts have the same global scale, as some kernels take for granted."""

from __future__ import annotations

import math
import os
import re
import struct
from pathlib import Path

from sglang_sm120.checkpoint import inspection

_SCALE = re.compile(r"(?P<expert>.*\.experts\.\d+)\.(?P<part>w1|w3|gate_proj|up_proj)\.weight_scale_2$")
_GATES = ("w1", "gate_proj")


def are_equal(directory: Path) -> bool | None:
    """True where every expert's are; None where they cannot be read, or are no positive numbers.

    Reads four bytes of each scale: 22 thousand in DeepSeek-V4-Flash.
    """
    gates: dict[str, float] = {}
    ups: dict[str, float] = {}
    try:
        for file in sorted(directory.glob("*.safetensors")):
            for name, value in _scales(file):
                found = _SCALE.match(name)
                assert found is not None
                (gates if found["part"] in _GATES else ups)[found["expert"]] = value
    except (OSError, struct.error, inspection.CheckpointError):
        return None
    if not gates or gates.keys() != ups.keys() or not all(0 < v < math.inf for v in (*gates.values(), *ups.values())):
        return None
    return gates == ups


def _scales(file: Path) -> list[tuple[str, float]]:
    """Name and value of each global scale of gate or up in a shard; NaN for one that is no float32."""
    entries = {name: entry for name, entry in inspection.tensor_headers(file).items() if _SCALE.match(name)}
    if any(entry["dtype"] != "F32" for entry in entries.values()):
        return [(name, math.nan) for name in entries]
    with file.open("rb") as data:
        (length,) = struct.unpack("<Q", data.read(8))
        return [
            (name, struct.unpack("<f", os.pread(data.fileno(), 4, 8 + length + entry["data_offsets"][0]))[0])
            for name, entry in entries.items()
        ]
