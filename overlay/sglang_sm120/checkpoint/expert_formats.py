"""In which format a block's routed experts are, by the tensors of one of them, and what keeps SGLang from reading it.

A block is `part of an expert -> safetensors header entry`, as in {"w1.weight": {"dtype": "U8", "shape": [..]}, ...}.
Headers of dummy checkpoints may leave parts and shapes out; what is not there proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["hybrid-nvfp4", "mxfp4", "fp8", "other"]  # of a checkpoint, by its target's routed experts
PACKED = ("I8", "U8", "F4")  # dtypes that hold two e2m1 codes a byte
GROUPS = {"hybrid-nvfp4": 16, "mxfp4": 32}  # codes that share a scale
WORDS = {"hybrid-nvfp4": "NVFP4", "mxfp4": "MXFP4"}
PROJECTIONS = ("w1", "w2", "w3")  # gate, down, up
CALLED = WORDS | {"fp8": "FP8"}
BYTES = ("U8", "I8")  # hold a scale's bits, which SGLang's loader would convert as a number
_FLOATS = ("F32", "BF16", "F16", "F64")
POWERS = ("F8_E8M0", *_FLOATS)  # hold a power of two as a number
OWN_SCALES = ("scale", "weight_scale_inv")  # of MXFP4, as SGLang looks for them
_READABLE = (
    "SGLang's DeepSeek-V4 reads NVFP4 experts in the layout of NVIDIA's hybrid checkpoints alone (weight, "
    "weight_scale, weight_scale_2); serve such a checkpoint or an MXFP4 one"
)
Block = Mapping[str, Mapping[str, Any]]


def dtype(block: Block, part: str) -> str | None:
    """As safetensors writes it; None without such a part."""
    return block[part]["dtype"] if part in block else None


def kind_of(block: Block) -> Kind:
    """Format of the experts, from the dtypes and names of the first one's tensors."""
    weight, scale = dtype(block, "w1.weight"), dtype(block, "w1.weight_scale")
    group = _group(block, "weight_scale")
    if weight == "U8" and scale in BYTES:  # may be either's; a multiplier is NVFP4's
        return "hybrid-nvfp4" if group == 16 or (group is None and "w1.weight_scale_2" in block) else "mxfp4"
    if weight == "U8" and scale not in (None, "F8_E8M0") and group in (None, 16):
        return "hybrid-nvfp4"
    if weight in PACKED:
        return "mxfp4"
    return "fp8" if weight == "F8_E4M3" else "other"


def of_another_exporter(quantization: Mapping[str, Any], blocks: Mapping[str, Block]) -> str | None:
    """What is wrong with 4-bit experts under names or with global scales that SGLang's DeepSeek-V4 does not read."""
    quark = str(quantization.get("quant_method", "")).lower() == "quark"
    for name, block in blocks.items():
        for part in block:
            projection, _, what = part.rpartition(".")
            packed = f"{projection}.weight_packed"
            if what == "weight_global_scale" or (what == "weight_packed" and dtype(block, part) == "U8"):
                scales = f"{projection}.weight_global_scale"
                found = f"{packed}, {scales}" if {packed, scales} <= block.keys() else part
                inverse = ", which is the inverse of a multiplier" if scales in block else ""
                of = "NVFP4" if scales in block else "4-bit"
                return f"the experts of {name} are {of} of compressed-tensors ({found}{inverse}); {_READABLE}"
            if quark and what == "weight" and dtype(block, part) in PACKED:
                return f"the experts of {name} are 4-bit of Quark (quant_method quark, {part}); {_READABLE}"
    return None


def called(block: Block) -> str:
    """The format for a message: `NVFP4 (U8)`, or the type alone where the format is none of ours."""
    kind, weight = kind_of(block), dtype(block, "w1.weight")
    return f"{CALLED[kind]} ({weight})" if kind in CALLED else str(weight)


def converted(block: Block) -> str | None:
    """Type of the scales where SGLang's loader, which converts numbers, would not keep them; None where it does.

    The methods of `sm120_triton` take bytes as they are, and no number that changes.
    """
    scale = dtype(block, "w1.weight_scale") if kind_of(block) == "hybrid-nvfp4" else _own_scale(block)[1]
    kept = ("F8_E4M3",) if kind_of(block) == "hybrid-nvfp4" else POWERS
    return None if scale is None or scale in kept or kind_of(block) not in WORDS else scale


def unreadable(name: str, block: Block) -> list[str]:
    """Scales that packed experts lack, or have under another name, of another dtype or for another number of codes."""
    kind = kind_of(block)
    if kind == "other" or not all(f"{p}.weight" in block for p in PROJECTIONS):
        return []  # a header that names less than a whole expert proves nothing
    problems = []
    for p in PROJECTIONS:
        scales = ("weight_scale",) if kind == "hybrid-nvfp4" else (*OWN_SCALES, "weight_scale")
        if not any(f"{p}.{suffix}" in block for suffix in scales):
            problems.append(f"the routed experts of {name} have {p}.weight but no scale tensor beside it")
        elif kind == "hybrid-nvfp4" and f"{p}.weight_scale_2" not in block:
            problems.append(f"the routed experts of {name} are NVFP4 and lack {p}.weight_scale_2, their multiplier")
    if problems:
        return [f"{problem}; download the checkpoint again" for problem in problems]
    return [] if kind == "fp8" else _odd_scale(name, block, kind)


def _odd_scale(name: str, block: Block, kind: Kind) -> list[str]:
    """The first scale that is under another name, of another dtype or for another number of codes."""
    for p in PROJECTIONS:
        scale, found = ("weight_scale", dtype(block, f"{p}.weight_scale")) if kind != "mxfp4" else _own_scale(block, p)
        if scale not in OWN_SCALES and kind == "mxfp4":
            said = f"have codes of {dtype(block, f'{p}.weight')} with scales named {scale} ({found})"
            return [f"the routed experts of {name} {said}; SGLang reads MXFP4 scales named scale or weight_scale_inv"]
        good = (*POWERS, *BYTES) if kind == "mxfp4" else ("F8_E4M3", *BYTES, *_FLOATS)
        if found not in good:
            wanted = "F8_E8M0 for MXFP4" if kind == "mxfp4" else "F8_E4M3 for NVFP4"
            return [f"the routed experts of {name} have scales of {found} ({p}.{scale}); expected {wanted}"]
        multiplier = dtype(block, f"{p}.weight_scale_2")
        if kind == "hybrid-nvfp4" and multiplier not in _FLOATS:
            said = f"have multipliers of {multiplier} ({p}.weight_scale_2); expected F32 for NVFP4"
            return [f"the routed experts of {name} {said}"]
        group = _group(block, scale, p)
        if group is not None and group != GROUPS[kind]:
            said = f"have a scale for every {group} codes ({p}.{scale}); expected one for {GROUPS[kind]}"
            return [f"the routed experts of {name} {said}, as {WORDS[kind]} has"]
    return []


def _own_scale(block: Block, projection: str = "w1") -> tuple[str, str | None]:
    """Name and dtype of a matrix' MXFP4 scales; `weight_scale`, which SGLang does not read as such, last."""
    names = [s for s in (*OWN_SCALES, "weight_scale") if f"{projection}.{s}" in block]
    return (names[0], dtype(block, f"{projection}.{names[0]}")) if names else ("", None)


def _group(block: Block, scale: str, projection: str = "w1") -> int | None:
    """Codes of a row that share one of a matrix' scales; None where the shapes do not say."""
    shapes = [block.get(f"{projection}.{part}", {}).get("shape") for part in ("weight", scale)]
    if not all(isinstance(s, list) and len(s) == 2 and isinstance(s[1], int) and s[1] > 0 for s in shapes):
        return None
    codes, scales = (shape[1] for shape in shapes if shape)
    return int(2 * codes // scales)
