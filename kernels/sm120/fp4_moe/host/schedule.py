"""Which regime and which tiles: from token count, shapes and the live SM count, never from the routing's values."""

from __future__ import annotations

import dataclasses
import functools

import torch

from ...tile_tables import Tile
from ..weights.formats import MXFP4, Format

SCAN_LIMIT = 32  # routes up to which each program compares all ids with each other to find its group: a warp's lanes
CHUNK_TOKENS = 8192  # prefill goes in chunks of at most this, and of about WORKSPACE_BYTES: see `chunk_tokens`
WORKSPACE_BYTES = 640 << 20


@dataclasses.dataclass(frozen=True)
class Work:
    """What decides a plan. mxfp8 rounds in the first product's epilogue, fp8 multiplies natively; `wide_range` layers
    need the slower exact kernels; `invariant` wants a token's bits not to depend on its batch; `format` is that of the
    weights."""

    tokens: int
    top_k: int
    experts: int
    hidden: int
    inter: int
    mxfp8: bool = False
    fp8: bool = False
    invariant: bool = False
    wide_range: bool = False
    format: Format = MXFP4

    @property
    def routes(self) -> int:
        return self.tokens * self.top_k

    def most_groups(self, width: int, scan: bool) -> int:
        """Groups of up to `width` routes of one expert that there can be; while each program scans, one a route."""
        return self.routes if scan else min(self.routes, min(self.routes, self.experts) + self.routes // width)


@dataclasses.dataclass(frozen=True)
class Plan:
    """scan: groups found in the kernel, else by `sort_routes`. groups: programs per row tile. many: `product_wide`, or
    `product_wgmma` on SM90.

    Both tiles have the same number of tokens.
    """

    scan: bool
    groups: int
    gate_up: Tile
    down: Tile
    partial: torch.dtype
    many: bool


def chunk_tokens(top_k: int, hidden: int, inter: int) -> int:
    """Tokens to process at once: per route there are I and H values of bf16 between the kernels.

    Not counted are W4A8's copy of x, and SM90's, and that batch-invariant calls keep the H values in float32: up to
    twice as much.
    """
    return max(512, min(CHUNK_TOKENS, WORKSPACE_BYTES // (2 * top_k * (hidden + inter)) // 256 * 256))


@functools.lru_cache(maxsize=4096)
def plan(work: Work, sms: int, sm90: bool) -> Plan:
    """The launch for this work on a GPU of `sms` SMs.

    Every W4A16 tile that is not `many` adds in the same order (two superblocks a step, each with its own sums),
    whatever its rows, tokens and warps; so `invariant` only has to exclude `many` and partial results in bf16, and with
    fp8 the widest groups, which take fewer superblocks a step. On SM90, where that is slow with many tokens,
    `invariant` takes wgmma with every number of them instead: its tiles, too, all add in one order.
    """
    w = work
    scan = w.routes <= SCAN_LIMIT
    expected = w.routes / w.experts  # routes of an expert
    active = min(w.routes, w.experts)
    # A row of the second product is at least a step, of two superblocks (SM90: of one); what is left comes first.
    fits = w.hidden % 128 == 0 and w.inter >= (64 if sm90 else 128) and not (w.wide_range or w.fp8)
    throughout = fits and w.invariant and w.inter % 64 == 0 and has_wgmma_throughout(sm90)
    many = throughout or (fits and not w.invariant and expected > (8 if sm90 else 16))
    width = _wgmma_width(expected, throughout) if many and sm90 else _group_width(expected, w.fp8)
    if w.fp8:
        width = min(width, 32) if w.invariant else width
        tiles = [_fp8_tile(width)] * 2
    elif many:
        tiles = [_wgmma_tile(width) if sm90 else Tile(128, width, warps=4)] * 2
        if throughout and width <= 32:
            sizes = ((2 * w.inter, w.hidden), (w.hidden, w.inter))
            tiles = [_few_wgmma_tile(width, rows // 64 * active <= 7 * sms, columns) for rows, columns in sizes]
    else:
        tiles = [_gate_up_tile(w, active, width, sms, sm90), _down_tile(w, active, width, sms, sm90)]
    partial = torch.float32 if w.invariant or (not many and w.tokens <= 512) else torch.bfloat16
    return Plan(scan, w.most_groups(width, scan), tiles[0], tiles[1], partial, many)


def _group_width(expected: float, fp8: bool) -> int:
    if expected <= 8:  # a group of 8 that overflows costs less than one of 16 half empty
        return 8
    if expected <= 16 and not fp8:
        return 16
    # On SM120 128 x 64 sums spill with Triton before 3.8, and three passes over 96 tokens at 4.0 instructions a weight
    # (scripts/machine_code/report.py) cost what two at 5.6 do.
    return 64 if expected > 40 and fp8 else 32


def _wgmma_width(expected: float, throughout: bool) -> int:
    """Bounds from times of 512 to 8192 tokens (benchmarks/NOTES.md, item 13); throughout: also with few."""
    if throughout and expected <= 4:
        return 8
    return 16 if expected <= 12 else 32 if expected <= 30 else 64 if expected <= 64 else 128


def has_wgmma_throughout(sm90: bool) -> bool:
    """Whether `invariant` plans multiply with wgmma whatever the number of tokens."""
    return sm90


def _few_wgmma_tile(width: int, all_fit: bool, columns: int) -> Tile:
    """For at most 32 tokens: larger steps, 2.8 to 3.4 instructions a weight, not 3.7 (benchmarks/NOTES.md, item 15).

    all_fit: programs of 64 rows are all on the SMs at once, 7 on each by shared memory.
    """
    if all_fit and width == 8 and columns % 256 == 0:
        return Tile(64, width, stages=3, warps=4, superblocks=4)
    if columns % 128 == 0:
        return Tile(128, width, stages=3, warps=4, superblocks=2)
    return Tile(128, width, stages=4, warps=4, superblocks=1)


def _wgmma_tile(width: int) -> Tile:
    if width == 128:
        return Tile(128, width, stages=3, warps=8, superblocks=1)
    return Tile(128, width, stages=4, warps=4, superblocks=1)


def has_even_steps(columns: int) -> bool:
    """Whether a product over so many columns is an even number of whole steps."""
    return columns % 256 == 0


def may_unroll(tile: Tile, rows: int, columns: int) -> bool:
    """Whether the tile's loop can run over a matrix of this size: two steps a pass have no masks."""
    return tile.unroll == 1 or (rows % tile.rows == 0 and has_even_steps(columns))


def _gate_up_tile(w: Work, active: int, width: int, sms: int, sm90: bool) -> Tile:
    """The first product's: a block of 32 channels must lie in one tile where the epilogue rounds it (mxfp8).

    With few tokens a program's steps follow each other faster than it can wait for them: while all programs fit on the
    SMs at once each gets two warps and two steps a pass; beyond that, on SM90, more programs with two steps a pass,
    then larger ones. The bounds are measured there (benchmarks/NOTES.md, item 11); an SM of SM120 has a third of the
    bandwidth to keep up with.
    """
    rows = 2 * w.inter
    if width > 8:
        return _grouped_tile(w, width, w.mxfp8)
    each = -(-rows // 32) * active / sms  # programs of 32 rows an SM
    two_steps = has_even_steps(w.hidden)
    if sm90 and w.format.has_global and each > _resident(sm90):
        return _busy_tile(each, width)
    if two_steps and not w.mxfp8:
        if each <= _resident(sm90):
            return _few_tile(sm90)
        if sm90 and each <= 32:
            return Tile(32, width, stages=4, unroll=2)
    if two_steps and sm90 and each <= 96:
        return Tile(64, width, warps=2, unroll=2)
    return Tile(64 if w.mxfp8 else _rows(rows, active, sms), width)


def _down_tile(w: Work, active: int, width: int, sms: int, sm90: bool) -> Tile:
    """The second product's. Its steps are fewer; two a pass pay from 16 on."""
    if width > 8:
        return _grouped_tile(w, width, False)
    each = -(-w.hidden // 32) * active / sms
    if w.inter >= 2048 and has_even_steps(w.inter) and each <= _resident(sm90):
        return _few_tile(sm90)
    if sm90 and w.format.has_global and w.inter >= 2048:
        return _busy_tile(each, width)
    return Tile(_rows(w.hidden, active, sms), width)


def _busy_tile(each: float, width: int) -> Tile:
    """NVFP4's on SM90 where programs of 32 rows do not fit on the SMs at once: one step a pass, and soon 64 rows.

    A weight costs one more instruction than in MXFP4, so the loop has no wait left that a second step could hide
    (benchmarks/NOTES.md, item 14).
    """
    return Tile(32, width, stages=4) if each <= 16 else Tile(64, width)


def _resident(sm90: bool) -> int:
    """Programs of `_few_tile` in an SM's shared memory: 25.3 KiB in 227, 16.9 in 99."""
    return 8 if sm90 else 5


def _few_tile(sm90: bool) -> Tile:
    return Tile(32, 8, stages=4 if sm90 else 3, warps=2, unroll=2)


def _rows(total: int, active: int, sms: int) -> int:
    """64; 32 while that leaves SMs short of warps. Tokens that share experts leave a part of the programs idle."""
    return 64 if -(-total // 64) * active >= 24 * sms else 32


def _grouped_tile(w: Work, width: int, quantized: bool) -> Tile:
    if width == 32 and w.format.has_global:
        return Tile(64, width, stages=2, warps=2)  # with three stages the scaled codes spill
    if width == 16:
        return Tile(64 if quantized else 32, width, warps=2 if quantized else 1)  # 64 rows of one warp spill
    return Tile(64, width, warps=2)


def _fp8_tile(width: int) -> Tile:
    """Every operand of the loop, the activations' scales too, has at least 4 bytes a thread: cp.async's least."""
    return Tile(64, width, stages=2 if width == 8 else 3, warps=2, superblocks=2 if width == 64 else 4)


@functools.cache
def sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@functools.cache
def is_sm90(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
