"""Device functions that read prepared weights: codes to bf16 or e4m3 in registers, scale bytes to float32 or bf16.

On a GPU the decode is the PTX of `layout`, four bytes (one word) at a time; it relies on the word's bytes being
neighbours in a thread's registers, which scripts/machine_code/report.py checks in the compiled form. The interpreter
has no inline assembly, so there each element picks its bits out of its word by arithmetic.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..weights import layout

_BF16 = layout.bf16_terms()
# One assembly block per half: Triton 3.8 and later move only single-result blocks into the layout that the MMA wants,
# and ptxas shares the rotations between the two anyway.
BF16_LO, BF16_HI = tl.constexpr(layout.decode_ptx(_BF16[:2])), tl.constexpr(layout.decode_ptx(_BF16[2:]))
TWO_OUTPUTS = tl.constexpr("=&r,=&r,r")
# SOURCE as one number per bit of a code: eight 5-bit positions, for elements lo0 .. lo3 (bits 0 .. 19) and hi0 .. hi3.
_POSITIONS = [
    sum(((layout.SOURCE[i // 2][bit] + 16 * (i % 2)) % 32) << 5 * i for i in range(8)) for bit in range(4)
]  # fmt: skip
POS_M, POS_E0, POS_E1, POS_S = (tl.constexpr(p) for p in _POSITIONS)


@triton.jit
def _picked_bit(word, element, POSITIONS: tl.constexpr):
    position = (tl.full((), POSITIONS, tl.int64) >> (5 * element).to(tl.int64)) & 31
    return ((word >> position) & 1).to(tl.int32)


@triton.jit
def picked_value(word, element):
    mantissa, exponent = _picked_bit(word, element, POS_M), _picked_bit(word, element, POS_E0)
    exponent += 2 * _picked_bit(word, element, POS_E1)
    quarters = tl.where(exponent == 0, 2 * mantissa, (2 + mantissa) << exponent)
    quarters = tl.where(_picked_bit(word, element, POS_S) != 0, -quarters, quarters)
    return quarters.to(tl.float32) * 0.25


@triton.jit
def load_bf16_codes(
    w_ptr, offsets, byte, mask, MASKED: tl.constexpr, ASM: tl.constexpr
):  # fmt: skip
    """(lo, hi), each of the offsets' shape: the codes in the word around w_ptr + offsets.

    With ASM bf16 and scaled by 2**-126; without, float32 and not scaled, because Triton's interpreter loses bf16
    subnormals and multiplies bf16 operands of a dot as integers. `byte` is the position along the last dimension;
    offsets along it are consecutive and start at a multiple of 4.
    """
    if ASM:
        if MASKED:  # noqa: SIM108 - Triton compiles one branch
            w = tl.load(w_ptr + offsets, mask=mask, other=0)
        else:
            w = tl.load(w_ptr + offsets)
        lo = tl.inline_asm_elementwise(BF16_LO, TWO_OUTPUTS, [w], dtype=tl.bfloat16, is_pure=True, pack=4)
        hi = tl.inline_asm_elementwise(BF16_HI, TWO_OUTPUTS, [w], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        first = offsets - byte % 4
        word = tl.full(first.shape, 0, tl.int64)
        for i in tl.static_range(4):
            if MASKED:  # noqa: SIM108 - as above
                part = tl.load(w_ptr + first + i, mask=mask, other=0)
            else:
                part = tl.load(w_ptr + first + i)
            word |= part.to(tl.int64) << (8 * i)
        lo = picked_value(word, byte % 4)
        hi = picked_value(word, byte % 4 + 4)
    return lo, hi


@triton.jit
def scale_to_float32(byte, WIDE: tl.constexpr):
    """2**(byte - 127) as float32. Bytes 0 (a subnormal) and 255 (NaN) are only right with WIDE."""
    bits = byte.to(tl.int32) << 23
    if WIDE:
        bits = tl.where(byte == 0, 0x00400000, tl.where(byte == 255, 0x7FC00000, bits))
    return bits.to(tl.float32, bitcast=True)


# NVFP4's scales as bf16 are 2**119 too large and decoded codes 2**126 too small: sums lack a factor of 2**7.
NV_SUMS = tl.constexpr(2.0**7)


@triton.jit
def nv_factor(byte, ASM: tl.constexpr):
    """Scales of E5M3 bytes (int32): with ASM a pair of equal bf16, times 2**119; without, float32. Wrong for 0."""
    if ASM:  # noqa: SIM108 - Triton compiles one branch
        factor = byte * 0x00100010 + 0x70007000
    else:
        factor = ((byte << 20) + 0x34800000).to(tl.float32, bitcast=True)
    return factor


@triton.jit
def nv_factors(four, ODD: tl.constexpr, EACH: tl.constexpr, A: tl.constexpr, B: tl.constexpr, ASM: tl.constexpr):
    """[A, B, 2 * EACH]: `nv_factor` of an even or odd block's two scales, each EACH times.

    four: int32 [A, B] of a superblock's scale bytes: even block's first and second 16 codes, odd block's.
    """
    first, second = nv_factor((four >> 16 * ODD) & 255, ASM), nv_factor((four >> (16 * ODD + 8)) & 255, ASM)
    both = tl.join(first, second)
    return tl.reshape(tl.broadcast_to(both[:, :, :, None], (A, B, 2, EACH)), (A, B, 2 * EACH))


@triton.jit
def nv_scaled(codes, factors, ASM: tl.constexpr):
    """Codes of `load_bf16_codes` times `nv_factors` of the same shape, exact: bf16 times 2**-7, or float32."""
    if ASM:
        # The factor comes in once for each code of a pair; the second is ignored.
        y = tl.inline_asm_elementwise(
            "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r,r", [codes, factors], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        y = codes * factors
    return y


@triton.jit
def times_power_of_two(x, EXPONENT: tl.constexpr):
    """bf16 x * 2**EXPONENT, exact unless it overflows: two values per instruction and no flush of subnormals."""
    FACTOR: tl.constexpr = (EXPONENT + 127) * 0x00800080
    return tl.inline_asm_elementwise(
        f"{{.reg .b32 f; mov.b32 f, {FACTOR}; mul.rn.bf16x2 $0, $1, f;}}",
        "=r,r",
        [x],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=2,
    )


@triton.jit
def to_bf16(v, ASM: tl.constexpr):
    """float32 to bf16, to nearest even. The interpreter's own conversion truncates, so there it is done on the bits."""
    if ASM:
        y = v.to(tl.bfloat16)
    else:
        bits = v.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded)
        y = rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return y


@triton.jit
def mxfp8_exponent(largest):
    """Exponent of a block's scale from its largest magnitude (float32): ceil(log2(largest / 448)) in -126 .. 112."""
    bits = largest.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) - 135 + ((bits & 0x7FFFFF) > 0x600000).to(tl.int32)
    return tl.minimum(tl.maximum(exponent, -126), 112)


@triton.jit
def power_of_two(exponent):
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def round_to_e4m3(v):
    """float32 with |v| <= 448 rounded to the nearest e4m3 value, ties to even; exact, and the same everywhere."""
    exponent = tl.maximum((v.to(tl.int32, bitcast=True) >> 23 & 255) - 127, -6)
    # Adding 1.5 * 2**23 leaves no bits below 1, so it rounds to a multiple of the spacing 2**(exponent - 3).
    multiples = v * power_of_two(3 - exponent) + 12582912.0
    return (multiples - 12582912.0) * power_of_two(exponent - 3)


@triton.jit
def to_fp8_bytes(blocks, AXIS: tl.constexpr):
    """(e4m3 bytes, scale bytes with AXIS of length 1) of float32 blocks, 32 values along AXIS.

    The scale byte is 6 higher than the block's exponent asks for, because codes widened to e4m3 are 2**6 too small; it
    is 255 (NaN) where a value is not finite. GPU only.
    """
    largest = tl.expand_dims(tl.max(tl.abs(blocks), AXIS), AXIS)
    finite = tl.expand_dims(tl.sum(tl.abs(blocks) * 0.0, AXIS), AXIS) == 0.0
    exponent = mxfp8_exponent(largest)
    codes = round_to_e4m3(blocks * power_of_two(-exponent)).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return codes, tl.where(finite, exponent + 133, 255).to(tl.uint8)


@triton.jit
def round_to_mxfp8(blocks, AXIS: tl.constexpr):
    """float32, 32 values along AXIS, rounded to e4m3 times a power of two (`reference.quantize_mxfp8`); NaN spreads."""
    largest = tl.expand_dims(tl.max(tl.abs(blocks), AXIS), AXIS)
    # A maximum may drop NaN; a sum of absolute values does not.
    finite = tl.expand_dims(tl.sum(tl.abs(blocks) * 0.0, AXIS), AXIS) == 0.0
    exponent = mxfp8_exponent(largest)
    q = round_to_e4m3(blocks * power_of_two(-exponent)) * power_of_two(exponent)
    return tl.where(finite, q, float("nan"))
