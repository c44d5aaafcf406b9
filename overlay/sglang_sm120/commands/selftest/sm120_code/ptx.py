"""PTX text as statements. Comments go; nothing is passed over that is not understood as a directive, label or scope."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_NOT_CODE = re.compile(r'("[^"\n]*")|//[^\n]*|/\*.*?\*/', re.S)
# A statement from where it begins; `.loc`, `.file` and data of debug sections end with their line.
_STATEMENT = re.compile(
    r"""(?P<space>\s+)
      | (?P<scope>[{}()])
      | (?P<label>[A-Za-z_$%][\w$]*\s*:(?!:))
      | (?P<directive>\.[a-z][^;\n{]*(?:=\s*\{[^}]*\}\s*)?;?)
      | (?P<instruction>(?:@(?P<guard>!?%?[\w$]+)\s+)?(?P<opcode>[a-z][a-z0-9]*(?:(?:\.|::)[A-Za-z0-9_]+)*)
            (?:\s+|(?=;|\{|\())(?P<operands>[^;]*);)""",
    re.X,
)


class PtxError(ValueError):
    """Text that is no PTX as it is known here; the message shows where."""


@dataclass(frozen=True)
class Statement:
    """A piece of PTX.

    Attributes:
        kind: `space`, `scope`, `label`, `directive` or `instruction`.
        text: as it stands.
        opcode: of an instruction, with its modifiers and types.
        operands: of an instruction; a vector in braces, or an address in brackets, is one.
        guard: of an instruction, the predicate without `@`; empty without one.
    """

    kind: str
    text: str
    opcode: str = ""
    operands: tuple[str, ...] = ()
    guard: str = ""


def statements(text: str) -> Iterator[Statement]:
    """The statements in order; their texts together are the text without comments.

    Raises:
        PtxError: something is none of the kinds.
    """
    text = _NOT_CODE.sub(lambda m: m[1] or " ", text)
    at = 0
    while at < len(text):
        found = _STATEMENT.match(text, at)
        if not found:
            raise PtxError(f"cannot read the PTX at {text[at : at + 80]!r}")
        at = found.end()
        kind = found.lastgroup or ""
        if found["instruction"]:
            operands = tuple(split(found["operands"]))
            yield Statement("instruction", found[0], found["opcode"], operands, found["guard"] or "")
        else:
            yield Statement(kind, found[0])


def split(operands: str) -> list[str]:
    """Operands at the commas that are in no bracket of any kind."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(operands):
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and depth == 0:
            parts.append(operands[start:i])
            start = i + 1
    parts.append(operands[start:])
    return [p.strip() for p in parts if p.strip()]


def members(vector: str) -> list[str]:
    """Of `{a, b}`: a and b; a single operand is its own only member."""
    text = vector.strip()
    return split(text[1:-1]) if text.startswith("{") and text.endswith("}") else [text]
