"""What a DeepSeek-V4 checkpoint on disk holds, read from `config.json` and the safetensors headers alone.

No torch, no SGLang, no weights. The header layout is the safetensors format's: eight bytes of little-endian length,
then that many bytes of JSON.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DEEPSEEK_V4 = ("deepseek_v4", "deepseek_v41")
INDEX = "model.safetensors.index.json"
_ROUTED = re.compile(r"(?P<block>(?:model\.)?(?:layers|mtp)\.\d+)\.(?:ffn|mlp)\.experts\.\d+\.(?P<part>.+)$")
_HEADER_LIMIT = 512 * 2**20


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message names the file and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """Facts that decide the MoE kernels.

    Attributes:
        kind: `mxfp4`, `hybrid-nvfp4`, `fp8` or `other`.
        hidden_size, moe_intermediate_size, experts, top_k: widths and counts of a routed MoE layer, unsharded.
        swiglu_limit: clamp of gate (above) and up (both sides); None without one.
        problems: faults that make a launch fail or compute nonsense, each naming the file and key to change.
    """

    kind: str
    hidden_size: int | None = None
    moe_intermediate_size: int | None = None
    experts: int | None = None
    top_k: int | None = None
    swiglu_limit: float | None = None
    problems: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_deepseek_v4(self) -> bool:
        return self.kind != "other"


def inspect(directory: Path) -> Checkpoint:
    """Read a local checkpoint.

    Raises:
        CheckpointError: `config.json` or a header that decides is absent, cut short or not what its format says.
    """
    config = _config(directory)
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    quantization = config.get("quantization_config") or text.get("quantization_config") or {}
    if config.get("model_type") not in DEEPSEEK_V4:
        return Checkpoint("other")
    experts = _expert_dtypes(directory)
    kind, problems = _kind(quantization, experts)
    return Checkpoint(
        kind,
        text.get("hidden_size"),
        text.get("moe_intermediate_size"),
        text.get("n_routed_experts"),
        text.get("num_experts_per_tok"),
        text.get("swiglu_limit"),
        tuple(problems),
    )


def tensor_headers(file: Path) -> dict[str, dict]:
    """Tensor name -> {"dtype", "shape", "data_offsets"} of one safetensors file.

    Raises:
        CheckpointError: the header is cut, too long or no JSON object.
    """
    try:
        with file.open("rb") as f:
            prefix = f.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= _HEADER_LIMIT:
                raise CheckpointError(f"{file} does not begin with a safetensors header; download it again")
            text = f.read(length)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    try:
        header = json.loads(text)
    except ValueError:
        raise CheckpointError(f"the safetensors header of {file} is cut short or damaged; download it again") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"the safetensors header of {file} is no JSON object; download it again")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _config(directory: Path) -> dict:
    file = directory / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file} does not exist; --model needs a checkpoint directory") from None
    except NotADirectoryError:
        raise CheckpointError(f"{directory} is a file; --model needs a checkpoint directory") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is no JSON ({error}); it is cut short or damaged, download it again") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} holds no JSON object; download it again")
    return config


def _expert_dtypes(directory: Path) -> dict[str, dict[str, str]]:
    """ "target" and "draft" -> part of the first routed expert's tensors (`w1.weight`, `w1.scale`, …) -> dtype."""
    places: dict[str, dict[str, Path]] = {}
    blocks: dict[str, str] = {}
    for name, file in _routed_names(directory):
        match = _ROUTED.search(name)
        if match is None:
            continue
        role = "draft" if "mtp." in match["block"] else "target"
        if blocks.setdefault(role, match["block"]) == match["block"]:
            places.setdefault(role, {}).setdefault(match["part"], file)
    found: dict[str, dict[str, str]] = {}
    headers: dict[Path, dict[str, dict]] = {}
    for role, parts in places.items():
        for part, file in parts.items():
            if file not in headers:
                headers[file] = tensor_headers(file)
            header = headers[file]
            names = [n for n in header if (m := _ROUTED.search(n)) and m["block"] == blocks[role] and m["part"] == part]
            if not names:
                raise CheckpointError(f"{file} lacks a tensor that {INDEX} places there; download it again")
            found.setdefault(role, {})[part] = str(header[names[0]].get("dtype"))
    return found


def _routed_names(directory: Path) -> Iterator[tuple[str, Path]]:
    index = directory / INDEX
    if index.is_file():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            items = sorted(weight_map.items())
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CheckpointError(f"{index} is cut short or has no weight_map; download it again") from None
        except OSError as error:
            raise CheckpointError(f"{index} cannot be read: {error.strerror}") from error
        for name, shard in items:
            yield name, directory / shard
        return
    for file in sorted(directory.glob("*.safetensors")):
        for name in tensor_headers(file):
            yield name, file


def _kind(quantization: dict, experts: dict[str, dict[str, str]]) -> tuple[str, list[str]]:
    """Kind of the target's routed experts, and what contradicts the configuration."""
    declared = (
        str(quantization.get("quant_algo", "")).upper() == "MIXED_PRECISION"
        and str(quantization.get("moe_quant_algo", "")).upper() == "NVFP4"
    )
    where = "config.json: quantization_config"
    problems = []
    parts = experts.get("target", {})
    weight, scale = parts.get("w1.weight"), parts.get("w1.scale") or parts.get("w1.weight_scale")
    if declared and quantization.get("group_size") is None:
        problems.append(f"{where}.group_size is missing; NVFP4 experts need it (16)")
    if weight == "U8" and "w1.weight_scale" in parts and not declared:
        problems.append(
            f"the routed experts are NVFP4 (U8 bytes with {scale} scales), but {where}.moe_quant_algo does not say so; "
            'SGLang would read them as MXFP4. Restore "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4"'
        )
    if declared and weight not in (None, "U8"):
        problems.append(f"{where}.moe_quant_algo says NVFP4, but the routed experts have dtype {weight}; expected U8")
    for role, of in experts.items():
        problems += _incomplete(role, of)
    if declared or (weight == "U8" and "w1.weight_scale" in parts):
        return "hybrid-nvfp4", problems
    if weight in ("I8", "U8", "F4"):
        return "mxfp4", problems
    if weight == "F8_E4M3":
        return "fp8", problems
    if weight is not None:
        problems.append(f"the routed experts have dtype {weight}; expected I8 (MXFP4), U8 (NVFP4) or F8_E4M3 (FP8)")
    return "other" if weight is not None else _declared_kind(quantization), problems


def _declared_kind(quantization: dict) -> str:
    """Without expert tensors on disk (weights elsewhere), what the configuration says."""
    return "fp8" if quantization.get("quant_method") == "fp8" else "other"


def _incomplete(role: str, parts: dict[str, str]) -> list[str]:
    """Packed experts need a scale for each projection. A header that names less than a whole expert proves nothing."""
    projections = ("w1", "w2", "w3")
    if any(parts.get(f"{p}.weight") not in ("I8", "U8", "F4") for p in projections):
        return []
    scales = ("scale", "weight_scale", "weight_scale_inv")
    return [
        f"the {role}'s routed experts have {p}.weight but no scale tensor beside it; download the checkpoint again"
        for p in projections
        if not any(f"{p}.{suffix}" in parts for suffix in scales)
    ]
