"""Where each bit of an MXFP4 code lies in the prepared weights, and the register decode that this makes cheap.

A row of K codes is cut into superblocks of 64: an even and an odd block of 32 codes, each with its own e8m0 scale. Word
w (0..7) of a superblock holds four codes of the even block (4w .. 4w+3, "lo") and the same four of the odd block
("hi"). In the checkpoint's order the 32 bits of such a word are lo0 lo1 lo2 lo3 hi0 hi1 hi2 hi3, four bits each, least
significant first; a code is sign, two exponent bits, mantissa.

The tensor cores want pairs of bf16. A bf16 whose bits 15, 8, 7 and 6 are the sign, the exponent and the mantissa of a
code and whose other bits are 0 is the code's value times 2**-126, exactly (0.5 becomes a subnormal). So a decode is
rotations and masks, and its cost is the number of different rotations plus the number of masked terms. `SOURCE` is a
placement of the 32 bits with the fewest for bf16 (9 instructions for 8 weights; the plain nibble order needs about 22,
because it has no two codes 16 bits apart) and, among those, the fewest for e4m3 (11). It was found by simulated
annealing over all placements that keep the two codes of a pair 16 bits apart; no placement can do with 8, because four
rotations of the bit pattern {6, 7, 8, 15} cannot tile the integers modulo 16.

e4m3 works alike: bits 7, 4, 3 and 2 of a byte give the value times 2**-6. The four bytes then hold codes 0, 2, 1, 3 of
the word's four, so activations in that format are stored in this order (`FP8_ORDER`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

# SOURCE[slot] = bit positions, in the prepared word, of (mantissa, low exponent, high exponent, sign) of the slot's
# first code; the second code's bits lie 16 further on (modulo 32). Slots: (lo0, lo1), (lo2, lo3), (hi0, hi1), (hi2,
# hi3).
SOURCE = ((6, 7, 8, 15), (10, 11, 12, 19), (0, 1, 2, 9), (4, 5, 14, 13))
BF16_TARGET = (6, 7, 8, 15)
FP8_TARGET = ((2, 3, 4, 7), (10, 11, 12, 15))
FP8_ORDER = (0, 2, 1, 3)
# Position i of 32 columns in `product_wgmma` holds this one: of half, pair, word and code, the bits of a position from
# the highest, word comes before pair in a column.
WGMMA_ORDER = tuple(i & 17 | (i & 8) >> 2 | (i & 6) << 1 for i in range(32))

Terms = dict[int, int]  # rotation to the left -> mask of the bits that it brings to their place


def _terms(assignments: Iterable[tuple[int, int]]) -> Terms:
    terms: Terms = {}
    for target, source in assignments:
        rotation = (target - source) % 32
        terms[rotation] = terms.get(rotation, 0) | 1 << target | 1 << (target + 16) % 32
    return dict(sorted(terms.items()))


def bf16_terms() -> list[Terms]:
    """Four outputs: the bf16 pairs (lo0, lo1), (lo2, lo3), (hi0, hi1), (hi2, hi3)."""
    return [_terms(zip(BF16_TARGET, source, strict=True)) for source in SOURCE]


def fp8_terms() -> list[Terms]:
    """Two outputs: four e4m3 bytes of lo, four of hi, in the order FP8_ORDER."""
    halves = ((SOURCE[0], SOURCE[1]), (SOURCE[2], SOURCE[3]))
    return [
        _terms(
            (t, s) for target, source in zip(FP8_TARGET, pair, strict=True) for t, s in zip(target, source, strict=True)
        )
        for pair in halves
    ]


def decode_ptx(outputs: list[Terms], names: Sequence[str] = ()) -> str:
    """PTX for `tl.inline_asm_elementwise`: one packed word in, one register per output out.

    names: registers to write to instead of the operands $0, $1, ...; the word is the operand behind these all the same.
    Outputs need early-clobber constraints ("=&r"): one is written before the word is read for the last time.
    """
    count = len(outputs)
    word = f"${count}"
    names = names or [f"${i}" for i in range(count)]
    moved: Terms = {}  # rotation -> all bits that it brings to their place, over the outputs
    for terms in outputs:
        for rotation, mask in terms.items():
            moved[rotation] = moved.get(rotation, 0) | mask
    moved.pop(0, None)
    lines = ["{", ".reg .b32 " + ", ".join(f"r{r}" for r in moved) + ";"]
    lines += [f"{_rotation_ptx(r, mask)} r{r}, {_rotation_operands(r, mask, word)};" for r, mask in moved.items()]
    for name, terms in zip(names, outputs, strict=True):
        for n, (rotation, mask) in enumerate(terms.items()):
            source = f"r{rotation}" if rotation else word
            if n == 0:
                lines.append(f"and.b32 {name}, {source}, {mask:#010x};")
            else:  # 0xEA: (a & b) | c
                lines.append(f"lop3.b32 {name}, {source}, {mask:#010x}, {name}, 0xEA;")
    return "\n".join([*lines, "}"])


def scaled_ptx(outputs: list[Terms]) -> str:
    """PTX: one packed word and a pair of bf16 in, the two outputs of `decode_ptx` times that pair out."""
    decode = decode_ptx(outputs, ("first", "second"))
    products = "mul.rn.bf16x2 $0, first, $3;\nmul.rn.bf16x2 $1, second, $3;"
    return f"{{\n.reg .b32 first, second;\n{decode}\n{products}\n}}"


def _rotation_ptx(rotation: int, mask: int) -> str:
    """A plain shift where no wanted bit wraps round: SM90 can do left shifts in the multiplier, which is idle here."""
    if mask >> rotation << rotation == mask:
        return "shl.b32"
    return "shr.u32" if mask >> rotation == 0 else "shf.l.wrap.b32"


def _rotation_operands(rotation: int, mask: int, word: str) -> str:
    operation = _rotation_ptx(rotation, mask)
    if operation == "shl.b32":
        return f"{word}, {rotation}"
    return f"{word}, {32 - rotation}" if operation == "shr.u32" else f"{word}, {word}, {rotation}"


def _signed(mask: int) -> int:
    return mask - (1 << 32) if mask >= 1 << 31 else mask


def permute_bits(words: torch.Tensor, moves: Terms) -> torch.Tensor:
    """int32 words whose bits are rotated left by each key and then kept where its mask is set."""
    out = torch.zeros_like(words)
    for rotation, mask in moves.items():
        wrapped = (1 << rotation) - 1
        if mask & ~wrapped:
            out |= (words << rotation) & _signed(mask & ~wrapped)
        if mask & wrapped:  # the arithmetic shift's sign bits fall outside the mask
            out |= (words >> (32 - rotation)) & (mask & wrapped)
    return out


def _moves(pairs: Iterable[tuple[int, int]]) -> Terms:
    moves: Terms = {}
    for source, target in pairs:
        rotation = (target - source) % 32
        moves[rotation] = moves.get(rotation, 0) | 1 << target
    return moves


def _bit_pairs() -> list[tuple[int, int]]:
    """(bit of the checkpoint's word, bit of the prepared word) for all 32 bits."""
    return [
        (4 * (2 * slot + second) + bit, (source[bit] + 16 * second) % 32)
        for slot, source in enumerate(SOURCE)
        for second in (0, 1)
        for bit in range(4)
    ]


TO_PREPARED = _moves(_bit_pairs())
TO_CHECKPOINT = _moves((b, a) for a, b in _bit_pairs())
