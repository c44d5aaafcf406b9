"""What a DeepSeek-V4 checkpoint on disk holds, read from `config.json` and the safetensors headers alone.

No torch, no SGLang, no weights. The header layout is the safetensors format's: eight bytes of little-endian length,
then that many bytes of JSON.
"""

from __future__ import annotations

import codecs
import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from sglang_sm120.checkpoint import expert_formats
from sglang_sm120.checkpoint.expert_formats import Block, Kind, dtype, kind_of

DEEPSEEK_V4 = ("deepseek_v4", "deepseek_v41")
INDEX = "model.safetensors.index.json"
_ROUTED = re.compile(r"(?P<block>(?:model\.)?(?:layers|mtp)\.\d+)\.(?:ffn|mlp)\.experts\.\d+\.(?P<part>.+)$")
_HEADER_LIMIT = 512 * 2**20
_BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # UTF-32's begin like UTF-16's
_COUNTS = ("n_routed_experts", "num_experts_per_tok")
_DSPARK_COUNTS = ("dspark_n_routed_experts", "dspark_num_experts_per_tok")
_SIZES = ("hidden_size", "moe_intermediate_size", *_COUNTS)


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

    kind: Kind
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
    if not isinstance(quantization, dict):
        raise CheckpointError(f"{directory / 'config.json'}: quantization_config is no JSON object; download it again")
    if config.get("model_type") not in DEEPSEEK_V4:
        return Checkpoint("other")
    kind, problems = _kind(quantization, _experts(directory))
    problems += _bad_sizes(text)
    return Checkpoint(
        kind,
        text.get("hidden_size"),
        text.get("moe_intermediate_size"),
        text.get("n_routed_experts"),
        text.get("num_experts_per_tok"),
        text.get("swiglu_limit"),
        tuple(problems),
    )


def tensor_headers(file: Path) -> dict[str, dict[str, Any]]:
    """Tensor name -> {"dtype", "shape", "data_offsets"} of one safetensors file.

    Raises:
        CheckpointError: the header is cut, too long or no JSON object.
    """
    try:
        if not file.is_file():  # absent, or a pipe that would wait for ever
            raise FileNotFoundError(2, "no such file")
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
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        whole = all(isinstance(e["dtype"], str) and _is_range(e["data_offsets"]) for e in tensors.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise CheckpointError(f"the safetensors header of {file} is cut short or damaged; download it again")
    return tensors


def _is_range(offsets: Any) -> bool:
    """Whether it is a begin and an end in bytes, as a file can have them."""
    begin, end = offsets if isinstance(offsets, list) and len(offsets) == 2 else (None, None)
    return type(begin) is int and type(end) is int and 0 <= begin <= end < 2**63


def _config(directory: Path) -> dict[str, Any]:
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
    return config


def _bad_sizes(text: dict[str, Any]) -> list[str]:
    """Sizes of routed MoE layers that no layer can have. What the configuration leaves out SGLang fills in."""
    given = {name: text[name] for name in _SIZES if text.get(name) is not None}
    given |= {name: text[name] for name in _DSPARK_COUNTS if text.get(name)}  # SGLang takes 0 for the target's
    good = {name: value for name, value in given.items() if _is_count(value)}
    bad = given.keys() - good.keys()
    problems = [f"config.json: {n} is {json.dumps(given[n])}; expected a positive whole number" for n in sorted(bad)]
    stages = tuple(own if own in given else name for own, name in zip(_DSPARK_COUNTS, _COUNTS, strict=True))
    limit = text.get("swiglu_limit")
    if limit is not None and not (_is_number(limit) and 0 < limit < float("inf")):
        problems.append(f"config.json: swiglu_limit is {json.dumps(limit)}; expected a positive number, or null")
    for experts, top_k in dict.fromkeys((_COUNTS, stages)):
        if {experts, top_k} <= good.keys() and good[top_k] > good[experts]:
            problems.append(f"config.json: {top_k} is {good[top_k]}; expected 1 to {good[experts]}, as {experts} says")
    return problems


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _experts(directory: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Block (`layers.0`, `mtp.0`) -> part of its first routed expert (`w1.weight`, `w1.scale`, …) -> header entry."""
    headers: dict[Path, dict[str, dict[str, Any]]] = {}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, file in _routed_names(directory):
        match = _ROUTED.search(name)
        if match is None or match["part"] in found.setdefault(match["block"], {}):
            continue
        if file not in headers:
            headers[file] = tensor_headers(file)
        if name not in headers[file]:
            raise CheckpointError(f"{file} lacks {name}, which {INDEX} places there; download it again")
        found[match["block"]][match["part"]] = headers[file][name]
    return found


def _routed_names(directory: Path) -> Iterator[tuple[str, Path]]:
    index = directory / INDEX
    if index.is_file():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            items = sorted((name, directory / shard) for name, shard in weight_map.items())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CheckpointError(f"{index} is cut short or has no weight_map; download it again") from None
        except OSError as error:
            raise CheckpointError(f"{index} cannot be read: {error.strerror}") from error
        yield from items
        return
    for file in sorted(directory.glob("*.safetensors")):
        for name in tensor_headers(file):
            yield name, file


def _kind(quantization: dict[str, Any], blocks: Mapping[str, Block]) -> tuple[Kind, list[str]]:
    """Kind of the target's routed experts, and what contradicts the configuration."""
    foreign = expert_formats.of_another_exporter(quantization, blocks)
    if foreign:
        return "other", [foreign]
    declared = (
        str(quantization.get("quant_algo", "")).upper() == "MIXED_PRECISION"
        and str(quantization.get("moe_quant_algo", "")).upper() == "NVFP4"
    )
    target = next((block for block in blocks if "mtp." not in block), "")
    parts = blocks.get(target, {})
    weight = dtype(parts, "w1.weight")
    kind: Kind = kind_of(parts) if weight else ("hybrid-nvfp4" if declared else _declared_kind(quantization))
    problems = _undeclared(quantization, parts, kind, declared)
    if kind == "other" and weight:
        problems.append(f"the routed experts have dtype {weight}; expected I8 (MXFP4), U8 (NVFP4) or F8_E4M3 (FP8)")
    problems += _odd_blocks(quantization, blocks, target, kind)
    return kind, problems + [said for name, block in blocks.items() for said in expert_formats.unreadable(name, block)]


def _undeclared(quantization: dict[str, Any], parts: Block, kind: Kind, declared: bool) -> list[str]:
    """What the configuration says of the target's experts that their tensors contradict."""
    where = "config.json: quantization_config"
    weight, scale = dtype(parts, "w1.weight"), dtype(parts, "w1.weight_scale")
    problems = []
    if declared and str(quantization.get("group_size")) != "16":
        size = quantization.get("group_size")
        state = "missing" if size is None else str(size)
        problems.append(f"{where}.group_size is {state}; NVFP4 experts need it, and have 16")
    if kind == "hybrid-nvfp4" and not declared:
        problems.append(
            f"the routed experts are NVFP4 (U8 bytes with {scale} scales), but {where}.moe_quant_algo does not say so; "
            'SGLang would read them as MXFP4. Restore "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4"'
        )
    if declared and weight and weight != "U8":
        problems.append(f"{where}.moe_quant_algo says NVFP4, but the routed experts have dtype {weight}; expected U8")
    elif declared and weight and kind == "mxfp4":
        problems.append(f"{where}.moe_quant_algo says NVFP4, but the routed experts are MXFP4 by their scales")
    return problems


def _odd_blocks(quantization: dict[str, Any], blocks: Mapping[str, Block], target: str, kind: Kind) -> list[str]:
    """Blocks whose experts SGLang would read in another format than they have.

    It reads all target layers as the first one, but those that `ignore` names, and the draft as MXFP4 where the
    target's bytes are packed.
    """
    ignored = [p for p in quantization.get("ignore") or [] if not str(p).startswith("mtp")]
    problems = []
    for block, parts in blocks.items():
        draft = "mtp." in block
        expected = ("fp8" if kind == "fp8" else "mxfp4") if draft else kind
        weight = dtype(parts, "w1.weight")
        if not weight or kind_of(parts) == expected or kind == "other" or (ignored and not draft):
            continue
        of = f"the experts of {block} are {kind_of(parts)} ({weight})"
        problems.append(f"{of}, and SGLang would read them as {expected}; convert the checkpoint anew")
    return problems


def _declared_kind(quantization: dict[str, Any]) -> Kind:
    """Without expert tensors on disk (weights elsewhere), what the configuration says."""
    return "fp8" if quantization.get("quant_method") == "fp8" else "other"
