"""A checkpoint's files: its configuration, its shards, and what stands in the header of each.

The header layout is the safetensors format's: eight bytes of little-endian length, then that many bytes of JSON.
"""

from __future__ import annotations

import codecs
import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # UTF-32's begin like UTF-16's
_HEADER_LIMIT = 512 * 2**20
_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")

Entry = Mapping[str, Any]  # dtype, shape and data_offsets, as safetensors writes them


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message names the file and what to do."""


def configuration(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """`config.json`, and the part of it that is about the text model.

    Raises:
        CheckpointError: the file is absent or no JSON object.
    """
    file = directory / "config.json"
    try:
        raw = file.read_bytes()
        if raw.startswith(_BYTE_ORDER_MARKS):
            raise CheckpointError(
                f"{file} begins with a byte order mark, so SGLang does not read it; save it as UTF-8 without one"
            )
        config = json.loads(raw.decode("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file} does not exist; --model needs a checkpoint directory") from None
    except NotADirectoryError:
        raise CheckpointError(f"{directory} is a file; --model needs a checkpoint directory") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is no JSON ({error}); it is cut short or damaged, download it again") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} holds no JSON object; download it again")
    text = config.get("text_config")
    return config, text if isinstance(text, dict) else config


def tensor_headers(file: Path) -> dict[str, dict[str, Any]]:
    """Tensor name -> {"dtype", "shape", "data_offsets"} of one safetensors file.

    Raises:
        CheckpointError: the header is cut, too long or no JSON object, or the data behind it is cut. A file that ends
            with its header is whole: such checkpoints are for planning.
    """
    tensors, behind, size = _header(file)
    try:
        whole = all(isinstance(e["dtype"], str) and _is_range(e["data_offsets"]) for e in tensors.values())
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise CheckpointError(f"the safetensors header of {file} is cut short or damaged; download it again")
    data = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    if behind < size < behind + data:
        said = f"its header promises {behind + data} bytes, and it has {size}"
        raise CheckpointError(f"{file} is cut short: {said}; download it again")
    return tensors


def _header(file: Path) -> tuple[dict[str, dict[str, Any]], int, int]:
    """The entries of a file's header, unchecked, where the data begins, and the file's size."""
    try:
        if not file.is_file():  # absent, or a pipe that would wait for ever
            raise FileNotFoundError(2, "no such file")
        size = file.stat().st_size
        with file.open("rb") as f:
            prefix = f.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= _HEADER_LIMIT:
                raise CheckpointError(f"{file} does not begin with a safetensors header; download it again")
            text = f.read(length)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}; download it again") from error
    try:
        tensors = {name: entry for name, entry in json.loads(text).items() if name != "__metadata__"}
    except (ValueError, AttributeError, RecursionError):
        said = f"the safetensors header of {file} is cut short or damaged; download it again"
        raise CheckpointError(said) from None
    return tensors, 8 + length, size


def _is_range(offsets: Any) -> bool:
    """Whether it is a begin and an end in bytes, as a file can have them."""
    begin, end = offsets if isinstance(offsets, list) and len(offsets) == 2 else (None, None)
    return type(begin) is int and type(end) is int and 0 <= begin <= end < 2**63


def index(directory: Path) -> dict[str, Path] | None:
    """Tensor name -> its shard, in the index's order; None without an index.

    Raises:
        CheckpointError: the index cannot be read, or names no shards.
    """
    file = directory / INDEX
    if not file.is_file():
        return None
    try:
        weight_map = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        files = {shard: directory / shard for shard in weight_map.values()}
        return {name: files[shard] for name, shard in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{file} is cut short or has no weight_map; download it again") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error


def shards(directory: Path, placed: Mapping[str, Path] | None) -> list[Path]:
    """The files that SGLang reads, sorted: those of the index (`placed`), else all of the directory.

    Raises:
        CheckpointError: without an index, a file's name counts further files, and one of them is absent.
    """
    if placed is not None:
        return sorted(set(placed.values()))
    files = sorted(directory.glob("*.safetensors"))
    present = {file.name for file in files}
    for file in files:
        found = _NUMBERED.fullmatch(file.name)
        numbers = range(1, int(found["count"]) + 1) if found else ()
        for other in (f"{found['stem']}-{number:05d}-of-{found['count']}.safetensors" for number in numbers if found):
            if other not in present:
                raise CheckpointError(f"{directory / other} is absent, which {file.name} counts; download it again")
    return files
