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
    scaled: bool = False


@functools.lru_cache(maxsize=4096)
def plan(
    tokens: int, top_k: int, experts: int, hidden: int, inter: int, sms: int, quantized: bool, invariant: bool
) -> Plan:
    """The launch for `tokens` tokens. `invariant` keeps to tiles that give a token the same bits in any batch."""
    routes = tokens * top_k
    scan = routes <= SCAN_LIMIT
    expected = routes / experts
    width = 8 if expected <= 8 else 16 if expected <= 16 else 32
    groups = routes if scan else min(routes, min(routes, experts) + routes // width)
    wide = torch.float32 if invariant or tokens <= 512 else torch.bfloat16
    active = min(routes, experts)
    return Plan(
        scan,
        groups,
        Tile(_rows(2 * inter, active, sms, 64 if quantized else 16), width),
        Tile(_rows(hidden, active, sms, 16), width),
        wide,
    )


def _rows(total: int, active: int, sms: int, least: int) -> int:
    """The largest tile that still gives every SM two programs of two warps."""
    for rows in (64, 32):
        if rows <= least or -(-total // rows) * active >= 2 * sms:
            return rows
    return max(16, least)


@functools.cache
def sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
