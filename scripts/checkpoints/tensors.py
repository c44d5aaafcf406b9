"""The random tensors of a DeepSeek-V4 checkpoint: one transformer block, and what a block is made of.

Each tensor is drawn from streams named after tensors, so it is the same however many threads write, and tensors of
several formats are the same numbers where they draw from the same streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sglang_sm120.checkpoint import format
from sglang_sm120.checkpoint.format import COMPRESSED, Shape

HYPER = 4  # copies of the residual stream (hyper-connections)
# Root mean squares of the random codes: e2m1 over all 16, e4m3 over the 32 magnitudes from 0.25 to 3.75.
_RMS_E2M1, _RMS_E4M3 = 2.927, 1.616
_E4M3_ONE, _E4M3_ONE_AND_A_HALF = 0x38, 0x3C


def _e4m3_pairs() -> np.ndarray:
    """uint16 [512]: the e4m3 codes of both e2m1 values of a byte, low nibble first; from 256 on, of their doubles."""
    magnitudes = np.array([0x00, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C], dtype=np.uint16)  # 0, 0.5, 1, 1.5, ... 6
    doubles = magnitudes + np.where(magnitudes, 0x08, 0).astype(np.uint16)
    code = np.arange(256)
    tables = [np.concatenate([values, values | 0x80]) for values in (magnitudes, doubles)]
    return np.concatenate([table[code & 15] | table[code >> 4] << 8 for table in tables])


_E4M3_PAIRS = _e4m3_pairs()

Stream = Callable[[str], np.random.Generator]
Fill = Callable[[Stream], np.ndarray]


def streams(seed: int) -> Stream:
    """Name -> the random stream of that name, from its beginning."""

    def stream(name: str) -> np.random.Generator:
        key = hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16]
        return np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))

    return stream


@dataclass(frozen=True)
class Tensor:
    """One tensor of a shard; `fill` makes its values from the checkpoint's streams."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: Fill

    def data(self, stream: Stream) -> np.ndarray:
        """The values, in the tensor's own bytes."""
        values = self.fill(stream)
        assert values.nbytes == format.nbytes(self.dtype, self.shape), (self.name, values.shape, self.shape)
        return values


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Round to nearest, ties to even; the result is the upper half of the float32."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def normal(name: str, size: tuple[int, ...], deviation: float, dtype: str = "F32") -> Tensor:
    """Normal values of mean 0."""

    def fill(stream: Stream) -> np.ndarray:
        values = stream(name).standard_normal(size, dtype=np.float32) * np.float32(deviation)
        return bfloat16(values) if dtype == "BF16" else values

    return Tensor(name, dtype, size, fill)


def ones(name: str, size: int, dtype: str = "BF16") -> Tensor:
    """A norm's weight."""
    one = np.ones(size, dtype=np.float32)
    return Tensor(name, dtype, (size,), lambda _: bfloat16(one) if dtype == "BF16" else one)


def hyper_head(shape: Shape, prefix: str = "") -> list[Tensor]:
    """What joins the copies of the residual stream before the head."""
    width = HYPER * shape.hidden
    sizes = {"fn": ((HYPER, width), 0.1 / width**0.5), "base": ((HYPER,), 0.1), "scale": ((1,), 0.1)}
    return [normal(f"{prefix}hc_head_{name}", size, deviation) for name, (size, deviation) in sizes.items()]


def _bytes(g: np.random.Generator, *shape: int) -> np.ndarray:
    return np.frombuffer(g.bytes(int(np.prod(shape))), dtype=np.uint8).reshape(shape)


def _constant(values: np.ndarray) -> Fill:
    return lambda _: values


class Block:
    """The tensors of one transformer block, target or draft."""

    def __init__(self, shape: Shape, prefix: str, ratio: int, hashed: bool, kind: str) -> None:
        self.shape, self.prefix, self.tensors = shape, prefix, list[Tensor]()
        self._attention(ratio)
        self._experts(hashed, kind)
        mix = (2 + HYPER) * HYPER
        for half in ("attn", "ffn"):
            self.normal(f"hc_{half}_fn", "F32", (mix, HYPER * shape.hidden), 0.1 / (HYPER * shape.hidden) ** 0.5)
            self.normal(f"hc_{half}_base", "F32", (mix,), 0.1)
            self.normal(f"hc_{half}_scale", "F32", (3,), 0.1)
            self.ones(f"{half}_norm.weight", shape.hidden)

    def add(self, name: str, dtype: str, size: tuple[int, ...], fill: Fill) -> None:
        """One tensor."""
        self.tensors.append(Tensor(self.prefix + name, dtype, size, fill))

    def normal(self, name: str, dtype: str, size: tuple[int, ...], deviation: float) -> None:
        """Normal values of mean 0."""
        self.tensors.append(normal(self.prefix + name, size, deviation, dtype))

    def ones(self, name: str, size: int, dtype: str = "BF16") -> None:
        """A norm's weight."""
        self.tensors.append(ones(self.prefix + name, size, dtype))

    def fp8(self, name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        """A block-FP8 matrix that multiplies the size of unit inputs by about `gain`."""
        exponent = round(np.log2(gain / (_RMS_E4M3 * columns**0.5)))
        weight = f"{self.prefix}{name}.weight"

        def codes(stream: Stream) -> np.ndarray:
            random = _bytes(stream(weight), rows, columns)
            return (random & 0x80) | (0x28 + (random & 0x1F))

        self._with_scale(name, rows, columns, codes, exponent)

    def identity(self, name: str, size: int, value: float) -> None:
        """A block-FP8 multiple of the identity; `value` is a power of two."""
        diagonal = np.uint8(_E4M3_ONE)
        self._with_scale(name, size, size, lambda _: np.eye(size, dtype=np.uint8) * diagonal, round(np.log2(value)))

    def _with_scale(self, name: str, rows: int, columns: int, codes: Fill, exponent: int) -> None:
        block = self.shape.block
        blocks = (-(-rows // block), -(-columns // block))
        self.add(f"{name}.weight", "F8_E4M3", (rows, columns), codes)
        self.add(f"{name}.scale", "F8_E8M0", blocks, _constant(np.full(blocks, 127 + exponent, dtype=np.uint8)))

    def _attention(self, ratio: int) -> None:
        s, a = self.shape, "attn."
        self.fp8(f"{a}wq_a", s.q_rank, s.hidden)
        self.fp8(f"{a}wq_b", s.heads * s.head_dim, s.q_rank)
        self.fp8(f"{a}wkv", s.head_dim, s.hidden)
        self.fp8(f"{a}wo_a", s.o_groups * s.o_rank, s.heads * s.head_dim // s.o_groups)
        self.fp8(f"{a}wo_b", s.hidden, s.o_groups * s.o_rank, gain=0.5)
        self.ones(f"{a}q_norm.weight", s.q_rank)
        self.ones(f"{a}kv_norm.weight", s.head_dim)
        self.normal(f"{a}attn_sink", "F32", (s.heads,), 0.1)
        if ratio:
            self._compressor(f"{a}compressor.", s.head_dim, ratio)
        if ratio == COMPRESSED[0]:
            self._compressor(f"{a}indexer.compressor.", s.index_dim, ratio)
            self.fp8(f"{a}indexer.wq_b", s.index_heads * s.index_dim, s.q_rank)
            self.normal(f"{a}indexer.weights_proj.weight", "BF16", (s.index_heads, s.hidden), s.hidden**-0.5)

    def _compressor(self, name: str, dim: int, ratio: int) -> None:
        hidden = self.shape.hidden
        width = 2 * dim if ratio == COMPRESSED[0] else dim  # windows of the finer kind overlap
        self.normal(f"{name}wkv.weight", "BF16", (width, hidden), hidden**-0.5)
        self.normal(f"{name}wgate.weight", "BF16", (width, hidden), hidden**-0.5)
        self.normal(f"{name}ape", "F32", (ratio, width), 0.1)
        self.ones(f"{name}norm.weight", dim, "F32")

    def _experts(self, hashed: bool, kind: str) -> None:
        s, f = self.shape, "ffn."
        self.normal(f"{f}gate.weight", "BF16", (s.experts, s.hidden), s.hidden**-0.5)
        if hashed:
            self.add(f"{f}gate.tid2eid", "I32", (s.vocabulary, s.top_k), self._experts_of_tokens)
        else:
            self.normal(f"{f}gate.bias", "F32", (s.experts,), 0.05)
        # Pre-activations of deviation 3, so that some reach the clamp at 10; outputs half the residual.
        gains = {"w1": 3.0, "w2": 0.07, "w3": 3.0}
        for part, (rows, columns) in format.expert_matrices(s).items():
            for expert in range(s.experts):
                self._expert(f"{f}experts.{expert}.{part}", kind, rows, columns, gains[part])
            self.fp8(f"{f}shared_experts.{part}", rows, columns, gains[part])

    def _experts_of_tokens(self, stream: Stream) -> np.ndarray:
        g = stream(f"{self.prefix}ffn.gate.tid2eid")
        first = g.integers(0, self.shape.experts, (self.shape.vocabulary, 1))
        return ((first + np.arange(self.shape.top_k)) % self.shape.experts).astype(np.int32)

    def _expert(self, name: str, kind: str, rows: int, columns: int, gain: float) -> None:
        """One matrix of a routed expert: in every format e2m1 codes times 2^exponent or twice that, per 32 values."""
        exponent = round(np.log2(gain / (_RMS_E2M1 * 1.6 * columns**0.5)))  # 1.6: mean size of the random scales
        full, block = self.prefix + name, self.shape.block

        def packed(stream: Stream) -> np.ndarray:
            return _bytes(stream(f"{full}.weight"), rows, columns // 2)

        def doubled(stream: Stream) -> np.ndarray:
            return _bytes(stream(f"{full}.scale"), rows, columns // 32) & 1

        def e4m3(stream: Stream) -> np.ndarray:
            which = packed(stream) + np.repeat(doubled(stream).astype(np.uint16) << 8, 16, axis=1)
            return _E4M3_PAIRS[which].astype("<u2", copy=False).view(np.uint8)

        start = np.uint8(127 + exponent)
        one, whole = _E4M3_ONE, np.array(2.0**exponent, dtype=np.float32)
        if not self.shape.cast:
            one, whole = _E4M3_ONE_AND_A_HALF, whole / np.float32(1.5)
        fills: dict[str, dict[str, Fill]] = {
            "mxfp4": {"weight": packed, "scale": lambda stream: doubled(stream) + start},
            "hybrid-nvfp4": {
                "weight": packed,
                "weight_scale": lambda stream: np.repeat((doubled(stream) << 3) + np.uint8(one), 2, axis=1),
                "weight_scale_2": _constant(whole),
                "input_scale": _constant(np.array(2.0**-6, dtype=np.float32)),
            },
            "fp8": {"weight": e4m3, "scale": lambda _: np.full((-(-rows // block), -(-columns // block)), start)},
        }
        for part, (dtype, size) in format.matrix(kind, rows, columns, block).items():
            self.add(f"{name}.{part}", dtype, size, fills[kind][part])
