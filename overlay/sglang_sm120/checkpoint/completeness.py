"""Whether all routed experts of a block are there, alike, as wide as the configuration says, with scales that are such.

SGLang's loader asks for none of this: what is absent stays uninitialised without a word.
"""

from __future__ import annotations

import array
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from sglang_sm120.checkpoint.expert_formats import OWN_SCALES, PACKED, POWERS, PROJECTIONS, Block, dtype
from sglang_sm120.checkpoint.headers import CheckpointError, Entry
from sglang_sm120.checkpoint.survey import Experts, Place

_AGAIN = "download the checkpoint again"
# float type -> array's letter of integers as wide, the bits of a number's fraction; all 0 in a power of two
_FRACTION = {"F64": ("Q", (1 << 52) - 1), "F32": ("I", (1 << 23) - 1), "F16": ("H", (1 << 10) - 1)}
_FRACTION["BF16"] = ("H", (1 << 7) - 1)
_SAID = 3
_LOOKED_AT = 2**22  # bytes of a block's scales; SGLang's loader sees the others


def of_target(target: Mapping[str, Experts], text: dict[str, Any], layers: int | None) -> list[str]:
    """What a whole target lacks.

    Args:
        target: block -> its routed experts.
        text: the part of config.json that is about the text model.
        layers: how many it says that there are; None proves nothing.
    """
    absent_layers = (n for n in range(_dense(text), layers or 0) if f"layers.{n}" not in target)
    problems = [f"layers.{number} has no routed experts; {_AGAIN}" for number in islice(absent_layers, _SAID)]
    for name, experts in target.items():
        problems += absent(name, experts, text.get("n_routed_experts"), "n_routed_experts")
        problems += unlike(name, experts)
        problems += other_widths(name, experts.usual, text.get("hidden_size"), text.get("moe_intermediate_size"))
    return _few(problems)


def _dense(text: dict[str, Any]) -> int:
    """Layers at the beginning that have no routed experts."""
    found = text.get("first_k_dense_replace")
    return found if type(found) is int and found > 0 else 0


def _few(problems: list[str]) -> list[str]:
    """The first ones, and how many more there are: a wrong count in config.json is wrong for every layer."""
    rest = len(problems) - _SAID
    return problems if rest <= 0 else [*problems[:_SAID], f"and {rest} more of this kind"]


def absent(name: str, experts: Experts, wanted: object, key: str) -> list[str]:
    """What the block's numbers of experts say against `wanted`, the count that `key` of config.json has."""
    if type(wanted) is not int or wanted < 1 or _are_first(experts.numbers, wanted):
        return []
    have, counted = set(experts.numbers), f"config.json's {key} is {wanted}"
    if max(have) >= wanted:
        return [f"{name} has routed expert {max(have)}, but {counted}; correct config.json, or take another conversion"]
    first = next(number for number in range(wanted) if number not in have)
    return [f"{name} has {len(have)} routed experts (no expert {first}), but {counted}; {_AGAIN}"]


def _are_first(numbers: tuple[int, ...], count: int) -> bool:
    """Whether the numbers, in order, are those below a count."""
    return len(numbers) == count and numbers[-1] == count - 1


def unlike(name: str, experts: Experts) -> list[str]:
    """The first expert that lacks a tensor which the others have, or has it in another type or shape."""
    for number, parts in experts.unlike.items():
        expert = f"expert {number} of {name}"
        for part in sorted(experts.usual.keys() | parts.keys()):
            there, usual = parts.get(part), experts.usual.get(part)
            if there == usual or part.endswith(".input_scale") or _same_numbers(part, there, usual):
                continue
            if there is None:
                return [f"{expert} lacks {part}, which most of its experts have; {_AGAIN}"]
            if usual is None:
                return [f"{expert} has {part}, which most of its experts lack; {_AGAIN}"]
            return [f"{expert} has {part} as {_said(there)}, most of its experts as {_said(usual)}; {_AGAIN}"]
    return []


def _same_numbers(part: str, there: Entry | None, usual: Entry | None) -> bool:
    """Whether both are scales of a shape in types that hold a power of two."""
    both = [entry for entry in (there, usual) if entry is not None and entry["dtype"] in POWERS]
    return part.endswith(OWN_SCALES) and len(both) == 2 and both[0]["shape"] == both[1]["shape"]


def _said(entry: Entry) -> str:
    return f"{entry['dtype']} {entry['shape']}"


def other_widths(name: str, block: Block, hidden: object, intermediate: object) -> list[str]:
    """A matrix whose shape contradicts the configuration's widths."""
    if not isinstance(hidden, int) or not isinstance(intermediate, int):
        return []
    for projection in PROJECTIONS:
        part = f"{projection}.weight"
        found = block.get(part, {}).get("shape")
        rows, columns = (hidden, intermediate) if projection == "w2" else (intermediate, hidden)
        wanted = [rows, columns // (2 if dtype(block, part) in PACKED else 1)]
        if _is_matrix(found) and dtype(block, part) != "F4" and found != wanted:
            widths = f"hidden_size {hidden} and moe_intermediate_size {intermediate}"
            return [f"{part} of the experts of {name} is {found}; config.json's {widths} make it {wanted}"]
    return []


def _is_matrix(shape: object) -> bool:
    return isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and n > 0 for n in shape)


def odd_scales(name: str, experts: Experts) -> list[str]:
    """A float scale of packed MXFP4 codes that is no power of two, among the first expert's of the block."""
    block, place = experts.usual, experts.scale
    part = "w1.scale" if "w1.scale" in block else "w1.weight_scale_inv"
    kind = dtype(block, part)
    if place is None or kind not in _FRACTION or dtype(block, "w1.weight") not in PACKED:
        return []
    letter, fraction = _FRACTION[kind]
    if all(bits & fraction == 0 for bits in _numbers(place, letter)):
        return []
    return [f"the routed experts of {name} have scales of {kind} ({part}) that are no powers of two, as MXFP4's are"]


def _numbers(place: Place, letter: str) -> Sequence[int]:
    """The place's bytes as little-endian numbers; none behind a header that stands alone."""
    found = array.array(letter)
    try:
        with place.file.open("rb") as f:
            begin = 8 + int.from_bytes(f.read(8), "little") + place.begin
            f.seek(begin)
            data = f.read(min(place.end - place.begin, _LOOKED_AT))
    except OSError as error:
        raise CheckpointError(f"{place.file} cannot be read: {error.strerror}") from error
    found.frombytes(data[: len(data) // found.itemsize * found.itemsize])
    return found
