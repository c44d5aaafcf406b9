"""PTX for sm_120a or sm_121a as PTX for sm_90a: text in, text out.

Each `Substitution` replaces one kind of instruction by what the PTX ISA says it does. Everything else must be known to
mean the same on SM90 (`known_forms`); an instruction that is neither is refused by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from . import known_forms
from .ptx import PtxError, Statement, members, statements

TARGET = "sm_90a"
TARGETS = ("sm_120a", "sm_121a")
RETARGETED = ".target"
ALL_LANES = "0xffffffff"
OWN = "%on_"  # what the registers of replacements begin with, within a scope of their own


class NotSubstituted(PtxError):
    """An instruction that SM90 is not known to have, or a form that no substitution here covers; named."""


@dataclass(frozen=True)
class Substitution:
    """One kind of instruction and its replacement.

    Attributes:
        name: as receipts count it.
        opcode: what the whole opcode must match.
        section: of the PTX ISA.
        states: what that section says and the replacement does, in our words.
        write: the replacement's lines.
        operands: how many make an instruction of this opcode one of this kind; None: any number.
    """

    name: str
    opcode: re.Pattern[str]
    section: str
    states: str
    write: Callable[[Statement], list[str]]
    operands: int | None = None


@dataclass(frozen=True)
class Substituted:
    """PTX for SM90, and how often each thing was replaced in it."""

    text: str
    replaced: dict[str, int]


def for_sm90(text: str) -> Substituted:
    """The same kernel for sm_90a.

    Raises:
        NotSubstituted: it is for another target than sm_120a and sm_121a, or holds an instruction that may not stay
            and has no substitution; the message names the instruction.
        PtxError: it is no PTX.
    """
    if OWN in text:
        raise NotSubstituted(f"a register or label begins with {OWN}, as those of the replacements do")
    parts: list[str] = []
    replaced: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for s in statements(text):
        if s.kind == "directive" and re.match(r"\.target\b", s.text):
            parts.append(_retargeted(s.text))
            replaced[RETARGETED] += 1
        elif s.kind != "instruction":
            parts.append(s.text)
        elif rule := _rule_for(s):
            parts.append("{\n" + "\n".join(rule.write(s)) + "\n}")
            replaced[rule.name] += 1
        else:
            why = known_forms.reason_against(s.opcode, len(s.operands))
            if why:
                refused[f"{s.opcode} ({why})"] += 1
            parts.append(s.text)
    if refused:
        raise NotSubstituted("; ".join(f"{what}, {n} times" for what, n in sorted(refused.items())))
    if replaced[RETARGETED] != 1:
        raise NotSubstituted(f"{replaced[RETARGETED]} .target directives; expected one")
    return Substituted("".join(parts), dict(replaced))


def _rule_for(s: Statement) -> Substitution | None:
    found = (r for r in SUBSTITUTIONS if r.opcode.fullmatch(s.opcode) and r.operands in (None, len(s.operands)))
    return next(found, None)


def _retargeted(directive: str) -> str:
    """ISA, "PTX Module Directives: .target": it names the architecture whose features the module uses."""
    found = re.match(r"\.target\s+(\w+)", directive)
    if not found or found[1] not in TARGETS:
        raise NotSubstituted(f"{directive.strip()!r}; expected .target {' or '.join(TARGETS)}")
    return directive.replace(found[1], TARGET)


def _scalar_pair(s: Statement) -> list[str]:
    """`op.f32x2 d, a, b[, c]` as `op.f32` on the low and on the high half."""
    operation = s.opcode.removesuffix("x2")
    inputs = s.operands[1:]
    lines = [f".reg .b32 %on_half_{name}<2>;" for name in "abcd"]
    for name, operand in zip("abc", inputs, strict=False):
        lines.append(f"mov.b64 {{%on_half_{name}0, %on_half_{name}1}}, {operand};")
    for half in (0, 1):
        halves = ", ".join(f"%on_half_{name}{half}" for name, _ in zip("abc", inputs, strict=False))
        lines.append(f"{operation} %on_half_d{half}, {halves};")
    guard = f"@{s.guard} " if s.guard else ""
    return [*lines, f"{guard}mov.b64 {s.operands[0]}, {{%on_half_d0, %on_half_d1}};"]


def _two_of_three(s: Statement) -> list[str]:
    """`max d, a, b, c` as the larger of c and the larger of a and b; `min` likewise."""
    d, a, b, c = s.operands
    guard = f"@{s.guard} " if s.guard else ""
    return [".reg .f32 %on_two_of;", f"{s.opcode} %on_two_of, {a}, {b};", f"{guard}{s.opcode} {d}, %on_two_of, {c};"]


def _block_scaled_mma(s: Statement) -> list[str]:
    """D = (A * scale_A) (B * scale_B) + C of e4m3 with one e8m0 scale for each row of A and column of B."""
    if s.guard or len(s.operands) != 8:
        raise NotSubstituted(f"{s.opcode} with {len(s.operands)} operands{' and a predicate' * bool(s.guard)}")
    d, a, b, c = (members(operand) for operand in s.operands[:4])
    (scale_a,), (scale_b,) = members(s.operands[4]), members(s.operands[6])
    (byte_a, thread_a), (byte_b, thread_b) = (_selectors(s, at) for at in (5, 7))
    if [len(v) for v in (d, a, b, c)] != [4, 4, 2, 4] or thread_a > 1:
        raise NotSubstituted(f"{s.opcode} with {', '.join(s.operands)}")
    return [
        ".reg .b32 %on_lane, %on_quad, %on_from, %on_zero, %on_row<2>, %on_col<2>, %on_more, %on_high;",
        ".reg .b32 %on_a<8>, %on_b<4>, %on_out<4>;",
        ".reg .b16 %on_two<2>;",
        ".reg .f32 %on_sum<4>;",
        ".reg .f64 %on_scale, %on_wide, %on_plus;",
        ".reg .pred %on_nan;",
        "mov.u32 %on_lane, %laneid;",
        "and.b32 %on_quad, %on_lane, 28;",
        *_scale_bytes(scale_a, scale_b, byte_a, byte_b, thread_a, thread_b),
        *_as_halves(a, "a"),
        *_as_halves(b, "b"),
        *_products(),
        *_scaled(c),
        *(f"mov.b32 {register}, %on_out{i};" for i, register in enumerate(d)),
    ]


def _selectors(s: Statement, at: int) -> tuple[int, int]:
    """(byte-id, thread-id) where both are numbers of 0 to 3."""
    found = members(s.operands[at])
    if len(found) != 2 or not all(re.fullmatch("[0-3]", f) for f in found):
        raise NotSubstituted(f"{s.opcode} with the selectors {s.operands[at]}; expected two numbers of 0 to 3")
    return int(found[0]), int(found[1])


def _scale_bytes(a: str, b: str, byte_a: int, byte_b: int, thread_a: int, thread_b: int) -> list[str]:
    """%on_row0, %on_row1, %on_col0, %on_col1: the scale bytes of this lane's two rows and two columns of D.

    Lane 4 g + t holds of D the rows g and g + 8 and the columns 2 t and 2 t + 1. The scale of row g is with lane
    4 g + 2 thread-id-a, that of row g + 8 with the next one; the scale of column n is with lane 4 n + thread-id-b.
    """
    lines = []
    for i in (0, 1):
        lines += [
            f"or.b32 %on_from, %on_quad, {2 * thread_a + i};",
            f"shfl.sync.idx.b32 %on_row{i}, {a}, %on_from, 31, {ALL_LANES};",
            f"bfe.u32 %on_row{i}, %on_row{i}, {8 * byte_a}, 8;",
        ]
    lines += ["and.b32 %on_from, %on_lane, 3;", "shl.b32 %on_from, %on_from, 3;"]
    lines.append(f"or.b32 %on_from, %on_from, {thread_b};")
    for i in (0, 1):
        lines += [
            *(["or.b32 %on_from, %on_from, 4;"] * i),
            f"shfl.sync.idx.b32 %on_col{i}, {b}, %on_from, 31, {ALL_LANES};",
            f"bfe.u32 %on_col{i}, %on_col{i}, {8 * byte_b}, 8;",
        ]
    return lines


def _as_halves(registers: list[str], name: str) -> list[str]:
    """Each register's four e4m3 values as two pairs of f16, which holds every one of them."""
    lines = []
    for i, register in enumerate(registers):
        lines += [
            f"mov.b32 {{%on_two0, %on_two1}}, {register};",
            f"cvt.rn.f16x2.e4m3x2 %on_{name}{2 * i}, %on_two0;",
            f"cvt.rn.f16x2.e4m3x2 %on_{name}{2 * i + 1}, %on_two1;",
        ]
    return lines


def _products() -> list[str]:
    """%on_sum0 .. %on_sum3: A B without scales, as two products over 16 columns each.

    A register holds k = 4 t .. 4 t + 3 (and 16 more in the second half); the f16 MMA wants k = 2 t, 2 t + 1 and 8 more.
    The order of k is the same for A and B, so any that pairs them sums the same products.
    """
    sums = "{%on_sum0, %on_sum1, %on_sum2, %on_sum3}"
    mma = f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {sums}, "
    return [
        *(f"mov.b32 %on_sum{i}, 0;" for i in range(4)),
        mma + "{%on_a0, %on_a2, %on_a1, %on_a3}, {%on_b0, %on_b1}, " + f"{sums};",
        mma + "{%on_a4, %on_a6, %on_a5, %on_a7}, {%on_b2, %on_b3}, " + f"{sums};",
    ]


def _scaled(c: list[str]) -> list[str]:
    """%on_out0 .. %on_out3: each sum times both scales plus C, in float64, which holds every product of scales.

    A factor of 2**(row + column - 254) has the exponent field row + column - 254 + 1023; a byte of 255 is NaN.
    """
    lines = ["mov.b32 %on_zero, 0;"]
    for i, register in enumerate(c):
        row, column = f"%on_row{i // 2}", f"%on_col{i % 2}"
        lines += [
            f"max.u32 %on_more, {row}, {column};",
            "setp.eq.u32 %on_nan, %on_more, 255;",
            f"add.u32 %on_high, {row}, {column};",
            "add.u32 %on_high, %on_high, 769;",
            "shl.b32 %on_high, %on_high, 20;",
            "@%on_nan mov.b32 %on_high, 0x7FF80000;",
            "mov.b64 %on_scale, {%on_zero, %on_high};",
            f"cvt.f64.f32 %on_wide, %on_sum{i};",
            f"cvt.f64.f32 %on_plus, {register};",
            "fma.rn.f64 %on_wide, %on_wide, %on_scale, %on_plus;",
            f"cvt.rn.f32.f64 %on_out{i}, %on_wide;",
        ]
    return lines


SUBSTITUTIONS = (
    Substitution(
        "f32x2",
        re.compile(r"(?:add|sub|mul)(?:\.r[nzmp])?(?:\.ftz)?\.f32x2|fma\.r[nzmp](?:\.ftz)?\.f32x2"),
        "Floating Point Instructions: add, sub, mul, fma",
        "With .f32x2 the operands are pairs of float32 in 64 bits, and the operation, with its rounding and its "
        "treatment of subnormals, is done on the low elements and on the high elements separately. `mov` with a "
        "vector of two takes the low half first.",
        _scalar_pair,
    ),
    Substitution(
        "min or max of three",
        re.compile(r"(?:min|max)(?:\.ftz)?(?:\.NaN)?\.f32"),
        "Floating Point Instructions: min, max",
        "With three inputs the result is the smallest or largest of them; NaN inputs count as they do with two, so "
        "two operations after each other give the same.",
        _two_of_three,
        operands=4,
    ),
    Substitution(
        "block-scaled MMA",
        re.compile(
            r"mma\.sync\.aligned\.m16n8k32\.row\.col\.kind::mxf8f6f4\.block_scale(?:\.scale_vec::1X)?"
            r"\.f32\.e4m3\.e4m3\.f32\.ue8m0"
        ),
        "Block Scaling for mma.sync; Matrix Fragments for mma.m16n8k32 and for mma.m16n8k16 with floating point type",
        "D = (A scale_A) (B scale_B) + C, with one scale for a whole row of A and a whole column of B. Of each four "
        "lanes thread-id-a names the lower or upper two, which hold the scales of rows g and g + 8, and thread-id-b "
        "the one that holds column g's; byte-id names the byte of its register. A ue8m0 byte is 2**(byte - 127), "
        "255 NaN. The order of additions is left open.",
        _block_scaled_mma,
    ),
)
