"""32 lanes that run the straight-line PTX of a substitution, in numpy; and what the block-scaled MMA is by definition.

Written from the PTX ISA, apart from the code under test: registers are 64-bit patterns, each operation takes its type
from its own name, and an operation that is not known here is an error.
"""

from __future__ import annotations

import re

import numpy as np

LANES = 32
LANE = np.arange(LANES)
GROUP, IN_GROUP = LANE // 4, LANE % 4


def e4m3_values() -> np.ndarray:
    """The 256 codes of e4m3: bias 7, no infinities, S.1111.111 is NaN."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    value = np.where(code & 127 == 127, np.nan, value)
    return np.where(code & 128, -value, value)


E4M3 = e4m3_values()
E8M0 = np.where(np.arange(256) == 255, np.nan, 2.0 ** (np.arange(256) - 127.0))


def block_scaled_mma(a, b, c, scale_a, scale_b, byte_a, thread_a, byte_b, thread_b) -> np.ndarray:
    """float64 [32, 4]: what each lane holds of D = (A scale_A) (B scale_B) + C, from registers uint32 [32, n].

    c is float32 [32, 4]. Fragments as in the ISA's section on mma.m16n8k32 with 8-bit types.
    """
    matrix_a, matrix_b, matrix_c = np.zeros((16, 32)), np.zeros((32, 8)), np.zeros((16, 8))
    for lane in range(LANES):
        g, t = divmod(lane, 4)
        for i in range(4):
            for j in range(4):
                matrix_a[g + 8 * (i % 2), 4 * t + 16 * (i // 2) + j] = E4M3[a[lane, i] >> 8 * j & 255]
            matrix_c[g + 8 * (i // 2), 2 * t + i % 2] = c[lane, i]
        for i in range(2):
            for j in range(4):
                matrix_b[4 * t + 16 * i + j, g] = E4M3[b[lane, i] >> 8 * j & 255]
    rows = [E8M0[scale_a[4 * (m % 8) + 2 * thread_a + m // 8] >> 8 * byte_a & 255] for m in range(16)]
    columns = [E8M0[scale_b[4 * n + thread_b] >> 8 * byte_b & 255] for n in range(8)]
    d = (matrix_a * np.array(rows)[:, None]) @ (matrix_b * np.array(columns)[None, :]) + matrix_c
    return np.stack([d[GROUP + 8 * (i // 2), 2 * IN_GROUP + i % 2] for i in range(4)], axis=1)


class Machine:
    """Registers of a warp, uint64 [32] each, by name; predicates are bool [32]."""

    def __init__(self, **registers: np.ndarray) -> None:
        self.registers = {f"%{name}": np.asarray(value).astype(np.uint64) for name, value in registers.items()}

    def run(self, text: str) -> None:
        for statement in text.replace("{\n", "").replace("\n}", "").split(";"):
            self._step(" ".join(statement.split()))

    def floats(self, name: str) -> np.ndarray:
        """The register as float32."""
        return self.registers[f"%{name}"].astype(np.uint32).view(np.float32)

    def pair(self, name: str) -> np.ndarray:
        """float32 [32, 2]: the low and the high half of the register."""
        return self.registers[f"%{name}"].view(np.float32).reshape(LANES, 2)

    def _step(self, statement: str) -> None:
        if not statement or statement.startswith(".reg"):
            return
        guard = None
        if statement.startswith("@"):
            guard, statement = statement[1:].split(" ", 1)
        opcode, rest = statement.split(" ", 1)
        given = [o.strip() for o in re.split(r",(?![^{]*\})", rest)]
        if move := re.fullmatch(r"mov\.[bu](32|64)", opcode):
            value = self._mov(given[1], int(move[1]), given[0].startswith("{"))
        else:
            name = opcode.replace(".", "_").replace("_rn", "").replace("_ftz", "")
            operation = getattr(self, f"_{name}", None)
            assert operation, f"{opcode} is not known to the machine"
            value = operation(*given[1:])
        self._put(given[0], value, None if guard is None else self.registers[guard])

    def _put(self, target: str, value: np.ndarray, where: np.ndarray | None) -> None:
        if target.startswith("{"):
            names = [n.strip() for n in target[1:-1].split(",")]
            for n, name in enumerate(names):
                self._put(name, value[..., n], where)
        elif where is None:
            self.registers[target] = value
        else:
            self.registers[target] = np.where(where, value, self.registers[target])

    def _get(self, operand: str) -> np.ndarray:
        if operand == "%laneid":
            return LANE.astype(np.uint64)
        if re.fullmatch(r"\d+|0x[0-9A-Fa-f]+", operand):
            return np.full(LANES, int(operand, 0), np.uint64)
        return self.registers[operand]

    def _all(self, vector: str) -> np.ndarray:
        """uint32 [32, n] of a vector of registers."""
        return np.stack([self._get(n.strip()) for n in vector[1:-1].split(",")], 1).astype(np.uint32)

    def _float(self, operand: str) -> np.ndarray:
        return self._get(operand).astype(np.uint32).view(np.float32)

    # Movement. Of a vector target the low element comes first.

    def _mov(self, a: str, bits: int, halves: bool) -> np.ndarray:
        half = np.uint64(bits // 2)
        if a.startswith("{"):
            low, high = (self._get(n.strip()) for n in a[1:-1].split(","))
            return low | high << half
        value = self._get(a)
        return np.stack([value & ((np.uint64(1) << half) - np.uint64(1)), value >> half], 1) if halves else value

    def _shfl_sync_idx_b32(self, a: str, lane: str, clamp: str, mask: str) -> np.ndarray:
        assert (clamp, mask) == ("31", "0xffffffff")
        return self._get(a)[self._get(lane).astype(int)]

    # Bits and integers

    def _and_b32(self, a: str, b: str) -> np.ndarray:
        return self._get(a) & self._get(b)

    def _or_b32(self, a: str, b: str) -> np.ndarray:
        return self._get(a) | self._get(b)

    def _shl_b32(self, a: str, b: str) -> np.ndarray:
        return self._get(a) << self._get(b) & np.uint64(2**32 - 1)

    def _add_u32(self, a: str, b: str) -> np.ndarray:
        return self._get(a) + self._get(b) & np.uint64(2**32 - 1)

    def _max_u32(self, a: str, b: str) -> np.ndarray:
        return np.maximum(self._get(a), self._get(b))

    def _bfe_u32(self, a: str, at: str, length: str) -> np.ndarray:
        return self._get(a) >> np.uint64(int(at)) & np.uint64(2 ** int(length) - 1)

    def _setp_eq_u32(self, a: str, b: str) -> np.ndarray:
        return self._get(a) == self._get(b)

    # Floating point, rounded to nearest even by numpy

    def _add_f32(self, a: str, b: str) -> np.ndarray:
        return _bits(self._float(a) + self._float(b))

    def _sub_f32(self, a: str, b: str) -> np.ndarray:
        return _bits(self._float(a) - self._float(b))

    def _mul_f32(self, a: str, b: str) -> np.ndarray:
        return _bits(self._float(a) * self._float(b))

    def _max_f32(self, a: str, b: str) -> np.ndarray:
        return _bits(np.fmax(self._float(a), self._float(b)))

    def _min_f32(self, a: str, b: str) -> np.ndarray:
        return _bits(np.fmin(self._float(a), self._float(b)))

    def _fma_f32(self, a: str, b: str, c: str) -> np.ndarray:
        exact = self._float(a).astype(np.longdouble) * self._float(b) + self._float(c)
        return _bits(exact.astype(np.float32))

    def _cvt_f64_f32(self, a: str) -> np.ndarray:
        return self._float(a).astype(np.float64).view(np.uint64)

    def _cvt_f32_f64(self, a: str) -> np.ndarray:
        return _bits(self._get(a).view(np.float64).astype(np.float32))

    def _fma_f64(self, a: str, b: str, c: str) -> np.ndarray:
        x, y, z = (self._get(n).view(np.float64).astype(np.longdouble) for n in (a, b, c))
        return (x * y + z).astype(np.float64).view(np.uint64)

    def _cvt_f16x2_e4m3x2(self, a: str) -> np.ndarray:
        codes = self._get(a).astype(np.uint16)
        low, high = (E4M3[codes >> shift & 255].astype(np.float16).view(np.uint16) for shift in (0, 8))
        return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(16)

    def _mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(self, a: str, b: str, c: str) -> np.ndarray:
        """Fragments as in the ISA's section on mma.m16n8k16 with floating point types."""
        pairs_a, pairs_b = (self._all(v).view(np.float16).reshape(LANES, -1, 2) for v in (a, b))
        sums = self._all(c).view(np.float32)
        matrix_a, matrix_b, d = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
        for lane in range(LANES):
            g, t = divmod(lane, 4)
            for i in range(4):
                matrix_a[g + 8 * (i % 2), 2 * t + 8 * (i // 2) :][:2] = pairs_a[lane, i]
                d[g + 8 * (i // 2), 2 * t + i % 2] = sums[lane, i]
            for i in range(2):
                matrix_b[2 * t + 8 * i :, g][:2] = pairs_b[lane, i]
        d += matrix_a @ matrix_b
        return np.stack([_bits(d[GROUP + 8 * (i // 2), 2 * IN_GROUP + i % 2].astype(np.float32)) for i in range(4)], 1)


def _bits(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).view(np.uint32).astype(np.uint64)
