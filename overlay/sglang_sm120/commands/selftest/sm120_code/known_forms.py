"""The instructions that mean the same on SM90: those that may stay. Whatever is not listed is refused by name.

For each family the PTX ISA's target notes allow the listed forms on sm_90a or earlier. A form that came later with the
same opcode (three inputs of `min`, 256-bit loads, `redux` on float32, conversions of e2m1 and ue8m0) does not match.
"""

from __future__ import annotations

import functools
import re

_INT = r"[us](?:16|32|64)"
_BITS = r"b(?:16|32|64)"
_ANY = r"(?:[busf](?:16|32|64)|pred)"
_HALF = r"(?:f16|f16x2|bf16|bf16x2)"
_ROUND = r"(?:\.r[nzmp])?"
_COMPARE = r"(?:eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan)"
_SPACE = r"(?:\.(?:global|shared|shared::cta|local|const|param|param::entry|param::func))?"
_ORDER = r"(?:\.(?:weak|volatile|(?:relaxed|acquire|release|acq_rel)\.(?:cta|cluster|gpu|sys)))?"
_CACHE = (
    r"(?:\.(?:ca|cg|cs|lu|cv|wb|wt|nc|L1::(?:evict_(?:normal|unchanged|first|last)|no_allocate)"
    r"|L2::(?:64B|128B|256B|cache_hint)))*"
)
_ELEMENT = r"(?:\.v[24])?\.[busf](?:8|16|32|64)"

# Opcode -> numbers of operands; None: any.
_FORMS: dict[str, tuple[int, ...] | None] = {
    # Integers and bits
    rf"(?:add|sub|min|max|div|rem)\.{_INT}": (3,),
    r"(?:add|min|max)\.[us]16x2": (3,),
    rf"mul\.(?:lo|hi|wide)\.{_INT}": (3,),
    rf"mad\.(?:lo|hi|wide)\.{_INT}": (4,),
    r"(?:abs|neg)\.s(?:16|32|64)": (2,),
    rf"(?:and|or|xor)\.(?:pred|{_BITS})": (3,),
    rf"not\.(?:pred|{_BITS})": (2,),
    r"lop3\.b32": (5,),
    rf"shl\.{_BITS}": (3,),
    r"shr\.[bus](?:16|32|64)": (3,),
    r"shf\.[lr]\.(?:wrap|clamp)\.b32": (4,),
    r"prmt\.b32": (4,),
    r"bfe\.[us](?:32|64)": (4,),
    r"bfi\.b(?:32|64)": (5,),
    r"(?:popc|clz|brev)\.b(?:32|64)": (2,),
    r"bfind(?:\.shiftamt)?\.[us](?:32|64)": (2,),
    # Floating point
    rf"(?:add|sub|mul){_ROUND}(?:\.ftz)?(?:\.sat)?\.f(?:32|64)": (3,),
    r"fma\.r[nzmp](?:\.ftz)?(?:\.sat)?\.f(?:32|64)": (4,),
    rf"(?:add|sub|mul)(?:\.rn)?(?:\.ftz)?(?:\.sat)?\.{_HALF}": (3,),
    rf"fma\.rn(?:\.ftz)?(?:\.sat|\.relu)?\.{_HALF}": (4,),
    rf"(?:min|max)(?:\.ftz)?(?:\.NaN)?(?:\.xorsign\.abs)?\.(?:f32|f64|{_HALF})": (3,),
    rf"(?:abs|neg)(?:\.ftz)?\.(?:f32|f64|{_HALF})": (2,),
    r"div\.(?:approx|full|r[nzmp])(?:\.ftz)?\.f32": (3,),
    r"(?:rcp|sqrt)\.(?:approx|r[nzmp])(?:\.ftz)?\.f32": (2,),
    r"(?:rsqrt|ex2|lg2|sin|cos|tanh)\.approx(?:\.ftz)?\.f32": (2,),
    # Comparison, selection, movement, conversion
    rf"setp\.{_COMPARE}(?:\.(?:and|or|xor))?(?:\.ftz)?\.(?:[busf](?:16|32|64)|{_HALF})": (3, 4),
    r"selp\.[busf](?:16|32|64)": (4,),
    rf"mov\.{_ANY}": (2,),
    r"cvt(?:\.r[nzmp]i?)?(?:\.ftz)?(?:\.sat)?\.(?:[us](?:8|16|32|64)|f16|bf16|f32|f64)"
    r"\.(?:[us](?:8|16|32|64)|f16|bf16|f32|f64)": (2,),
    r"cvt\.r[nz](?:\.relu)?\.(?:f16x2|bf16x2)\.f32": (3,),
    r"cvt\.rna\.tf32\.f32": (2,),
    r"cvt\.rn\.satfinite(?:\.relu)?\.e[45]m[32]x2\.f32": (3,),
    r"cvt\.rn\.satfinite(?:\.relu)?\.e[45]m[32]x2\.f16x2": (2,),
    r"cvt\.rn(?:\.relu)?\.f16x2\.e[45]m[32]x2": (2,),
    r"cvta(?:\.to)?\.(?:global|shared|local|const)\.u64": (2,),
    # Memory
    rf"(?:ld|st){_ORDER}{_SPACE}{_CACHE}{_ELEMENT}": (2, 3),
    rf"atom{_ORDER}{_SPACE}\.(?:add|min|max|and|or|xor|inc|dec|exch|cas)\.[busf](?:32|64)": (3, 4),
    rf"red{_ORDER}{_SPACE}\.(?:add|min|max|and|or|xor|inc|dec)\.[busf](?:32|64)": (2,),
    r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?:\.L2::(?:64B|128B|256B|cache_hint))*": (3, 4, 5),
    r"cp\.async\.(?:commit_group|wait_all)": (0,),
    r"cp\.async\.wait_group": (1,),
    r"(?:ld|st)matrix\.sync\.aligned\.m8n8\.x[124](?:\.trans)?\.shared(?:::cta)?\.b16": (2,),
    r"prefetch(?:\.global)?\.L[12]": (1,),
    # Threads among themselves
    r"bar(?:rier)?(?:\.cta)?\.sync(?:\.aligned)?": (1, 2),
    r"bar\.warp\.sync": (1,),
    r"bar(?:rier)?\.red\.(?:and|or)\.pred": None,
    r"(?:membar\.(?:cta|gl|sys)|fence\.(?:acq_rel|sc)\.(?:cta|gpu|sys))": (0,),
    r"shfl\.sync\.(?:up|down|bfly|idx)\.b32": (5,),
    r"vote\.sync\.(?:all|any|uni)\.pred": (3,),
    r"vote\.sync\.ballot\.b32": (3,),
    r"match\.any\.sync\.b(?:32|64)": (3,),
    r"redux\.sync\.(?:add|min|max)\.[us]32": (3,),
    r"redux\.sync\.(?:and|or|xor)\.b32": (3,),
    r"activemask\.b32": (1,),
    r"elect\.sync": (2,),
    r"griddepcontrol\.(?:wait|launch_dependents)": (0,),
    # Matrix products
    r"mma\.sync\.aligned\.m16n8k(?:8|16)\.row\.col\.f32\.bf16\.bf16\.f32": (4,),
    r"mma\.sync\.aligned\.m16n8k(?:8|16)\.row\.col\.f32\.f16\.f16\.f32": (4,),
    # Control
    r"bra(?:\.uni)?": (1,),
    r"(?:ret|exit|trap)(?:\.uni)?": (0,),
    r"call(?:\.uni)?": None,
}
_COMPILED = [(re.compile(pattern), counts) for pattern, counts in _FORMS.items()]
_VECTOR = re.compile(r"\.v(\d+)\.[busf](\d+)$")
WIDEST = 128  # bits of a load or store


@functools.cache
def reason_against(opcode: str, count: int) -> str | None:
    """Why an instruction of this opcode with so many operands may not stay; None where it may."""
    counts = [c for pattern, c in _COMPILED if pattern.fullmatch(opcode)]
    if not counts:
        return "not known to mean the same on SM90"
    if all(c is not None and count not in c for c in counts):
        return f"{count} operands, a form that SM90 is not known to have"
    vector = _VECTOR.search(opcode)
    if vector and opcode.startswith(("ld", "st")) and int(vector[1]) * int(vector[2]) > WIDEST:
        return f"{int(vector[1]) * int(vector[2])} bits at once; SM90 has at most {WIDEST}"
    return None
