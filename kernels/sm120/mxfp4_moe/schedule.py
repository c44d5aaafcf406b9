"""Which regime and which tiles: from token count, shapes and the live SM count alone, never from the routing's values."""

from __future__ import annotations

import dataclasses
import functools

import torch

SCAN_LIMIT = 63  # routes up to which each program finds its group by scanning the ids (they fit one int64)
CHUNK_TOKENS = 4096  # prefill goes in chunks: with top-8 and H 7168 the two workspaces stay under 512 MiB


@dataclasses.dataclass(frozen=True)
class Tile:
    rows: int
    tokens: int
    stages: int = 3
    warps: int = 2
    superblocks: int = 2  # of 64 columns, in one step; a warp takes one


@dataclasses.dataclass(frozen=True)
class Plan:
    scan: bool
    groups: int
    gate_up: Tile
    down: Tile
    partial: torch.dtype
    prefetch: int = 0
    many: bool = False


@functools.lru_cache(maxsize=4096)
def plan(
    tokens: int,
    top_k: int,
    experts: int,
    hidden: int,
    inter: int,
    sms: int,
    mxfp8: bool,
    fp8: bool,
    invariant: bool,
    wide_range: bool,
) -> Plan:
    """The launch for `tokens` tokens: mxfp8 rounds in the first product's epilogue, fp8 multiplies natively.

    `invariant` keeps to tiles that give a token the same bits in any batch: the order of additions depends on the
    superblocks a step, on whether weights or sums are scaled, and on the type of the partial results; on nothing else.
    """
    routes = tokens * top_k
    scan = routes <= SCAN_LIMIT
    expected = routes / experts
    many = expected > 16 and not invariant and not wide_range and not fp8 and hidden % 128 == 0 and inter % 64 == 0
    width = 8 if expected <= 8 else 16 if expected <= 16 else 128 if many and expected > 64 else 64 if many else 32
    active = min(routes, experts)
    groups = routes if scan else min(routes, active + routes // width)
    partial = torch.float32 if invariant or tokens <= 512 else torch.bfloat16
    if fp8:
        tiles = [Tile(64, width, superblocks=4)] * 2
    elif many:
        tiles = [Tile(128, width, warps=8 if width == 128 else 4, superblocks=2 if k % 128 == 0 else 1) for k in (hidden, inter)]
    else:
        # a block of 32 channels must lie in one tile where the epilogue rounds it
        rows = (_rows(2 * inter, active, sms, 64 if mxfp8 else 16), _rows(hidden, active, sms, 16))
        tiles = [Tile(r, width) for r in rows]
    return Plan(scan, groups, tiles[0], tiles[1], partial, many=many)


def _rows(total: int, active: int, sms: int, least: int) -> int:
    """The largest tile that still gives every SM two programs of two warps."""
    for rows in (64, 32):
        if rows <= least or -(-total // rows) * active >= 2 * sms:
            return rows
    return max(16, least)


@functools.cache
def sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@functools.cache
def is_sm90(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
