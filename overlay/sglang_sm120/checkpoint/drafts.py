"""The draft in a checkpoint's directory: which blocks it has, whether it is the one asked for, and what it lacks.

NextN (EAGLE) is one block, `mtp.0` or the one behind the target's last. DSpark's stages are `mtp.0` and on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang_sm120.checkpoint import completeness, expert_formats
from sglang_sm120.checkpoint.expert_formats import CALLED, Kind, called, dtype, kind_of
from sglang_sm120.checkpoint.survey import Experts, Survey

DSPARK = "DSPARK"
_ALGORITHMS = ("EAGLE", "NEXTN", DSPARK)
_READ: tuple[Kind, ...] = ("mxfp4", "fp8")  # formats of a draft's experts that SGLang has methods for
_OTHERWISE = "leave speculative decoding out, or name another draft with --speculative-draft-model-path"


def layers_of(text: dict[str, Any]) -> int | None:
    """The target's number of layers, as the configuration has it."""
    layers = text.get("num_hidden_layers")
    return layers if type(layers) is int and layers > 0 else None


def is_draft(block: str, layers: int | None) -> bool:
    """Whether a block of that name is the draft's: SGLang takes what lies behind the target's last layer for it."""
    name, _, number = block.partition(".")
    return name == "mtp" or (layers is not None and number.isdecimal() and int(number) >= layers)


def experts_of(survey: Survey, layers: int | None) -> dict[str, Experts]:
    """The draft's blocks with routed experts."""
    return {name: experts for name, experts in survey.blocks.items() if is_draft(name, layers)}


def format_of(survey: Survey, layers: int | None) -> Kind | None:
    """Format of the draft's routed experts; None where no header says it."""
    first = next(iter(experts_of(survey, layers).values()), None)
    return kind_of(first.usual) if first and dtype(first.usual, "w1.weight") else None


def problems(survey: Survey, text: dict[str, Any], algorithm: str, reads: Kind | None) -> list[str]:
    """What keeps SGLang from drafting with what the directory holds; each line says what to do.

    Args:
        survey, text: the directory's headers, and the part of config.json that is about the text model.
        algorithm: `DSPARK`, or another name for a NextN draft.
        reads: the format in which SGLang would read the draft's experts; None where it looks at them.
    """
    if algorithm not in _ALGORITHMS:
        return []
    layers = layers_of(text)
    blocks = experts_of(survey, layers)
    if algorithm != DSPARK:
        blocks = dict(list(blocks.items())[:1])
    found = list(_of_another_algorithm(survey, text, layers, algorithm))
    if found:
        return found
    for name, experts in blocks.items():
        kind = kind_of(experts.usual)
        if dtype(experts.usual, "w1.weight") and kind not in (_READ if reads is None else (reads,)):
            wanted = CALLED[reads] if reads else "MXFP4 or FP8"
            said = f"the draft's experts of {name} are {called(experts.usual)}, and SGLang would read them as {wanted}"
            found.append(f"{said}; {_OTHERWISE}")
            continue
        found += expert_formats.unreadable(name, experts.usual)
        found += completeness.odd_scales(name, experts)
        if not survey.is_part:
            found += _incomplete(name, experts, text, algorithm)
    return found


def _incomplete(name: str, experts: Experts, text: dict[str, Any], algorithm: str) -> Iterator[str]:
    own = "dspark_n_routed_experts"
    key = own if algorithm == DSPARK and text.get(own) else "n_routed_experts"
    yield from completeness.absent(name, experts, text.get(key), key)
    yield from completeness.unlike(name, experts)
    yield from completeness.other_widths(
        name, experts.usual, text.get("hidden_size"), text.get("moe_intermediate_size")
    )


def _of_another_algorithm(survey: Survey, text: dict[str, Any], layers: int | None, algorithm: str) -> Iterator[str]:
    """What an algorithm needs that no other has: a NextN layer's projections, or the first stage's."""
    if survey.is_part:
        return
    behind = ["mtp.0"] if layers is None else ["mtp.0", f"layers.{layers}"]
    nextn = any(survey.has(block, "e_proj.weight") for block in behind)
    stages = survey.has("mtp.0", "main_proj.weight")
    if algorithm == DSPARK:
        if not stages:
            instead = "; its draft is a NextN layer: --speculative-algorithm EAGLE" if nextn else f"; {_OTHERWISE}"
            yield f"no DSpark stages: mtp.0.main_proj.weight is not there{instead}"
    elif not nextn:
        instead = "; its draft is DSpark's: --speculative-algorithm DSPARK" if stages else f"; {_OTHERWISE}"
        yield f"no NextN layer for {algorithm}: mtp.0.e_proj.weight is not there{instead}"
    elif text.get("num_nextn_predict_layers", 1) != 1:
        number = text["num_nextn_predict_layers"]
        yield f"config.json: num_nextn_predict_layers is {number}; SGLang's NextN draft needs 1"
