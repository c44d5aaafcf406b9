"""Tiles measured on the user's GPU (`sglang-sm120 tune`) in the place of `schedule`'s choice.

Only W4A16 tiles that add in the same order are ever tried (`CANDIDATES`), so a table changes times and never a bit of a
result; products with many tokens and the native W4A8 keep their tiles. A file that does not fit this machine, or does
not have the form that `sglang_sm120.kernels.sm120.tile_tables` checks, is reported once and ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator

import torch
import triton

from ... import tile_tables
from ...tile_tables import CANDIDATES, Entries, Machine, Shape, Tile
from . import schedule
from .schedule import Plan, Work

__all__ = ["CANDIDATES", "Forced", "machine", "may_unroll", "plan", "table", "trying"]
logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Forced:
    """Tiles in the place of the table's; None: the default ones."""

    tiles: tuple[Tile, Tile] | None


_forced: list[Forced] = []  # what a search is trying just now


def machine(device: torch.device) -> Machine:
    """What a table for this CUDA device is keyed by."""
    return Machine(torch.cuda.get_device_name(device), schedule.sm_count(device), triton.__version__)


def plan(device: torch.device, work: Work) -> Plan:
    """`schedule.plan`, with the tiles of this device's table where it has an entry."""
    if _forced:
        p, tiles = _default(device, work), _forced[-1].tiles
        return _with_tiles(p, work, tiles) if tiles else p
    return _plan(device, work)


@functools.lru_cache(maxsize=4096)
def _plan(device: torch.device, work: Work) -> Plan:
    p = _default(device, work)
    if device.type != "cuda":
        return p
    shape = Shape(work.experts, work.hidden, work.inter, work.top_k, format=work.format.name)
    tiles = table(device).get((shape, 1 << (work.tokens - 1).bit_length()))
    return _with_tiles(p, work, tiles) if tiles else p


def _default(device: torch.device, work: Work) -> Plan:
    return schedule.plan(work, schedule.sm_count(device), schedule.is_sm90(device))


def _with_tiles(p: Plan, work: Work, tiles: tuple[Tile, Tile]) -> Plan:
    """p with these tiles, where they may run.

    Unchanged for products that tables do not cover, where MXFP8 rounding needs 64 rows, and where a loop's steps cannot
    be unrolled.
    """
    gate_up, down = tiles
    if p.many or work.fp8 or (work.mxfp8 and gate_up.rows < 64):
        return p
    if not may_unroll(tiles, work.hidden, work.inter):
        return p
    return dataclasses.replace(p, gate_up=gate_up, down=down, groups=work.most_groups(gate_up.tokens, p.scan))


def may_unroll(tiles: tuple[Tile, Tile], hidden: int, inter: int) -> bool:
    """Whether the loops of both products can run over matrices of these sizes."""
    gate_up, down = tiles
    return schedule.may_unroll(gate_up, 2 * inter, hidden) and schedule.may_unroll(down, hidden, inter)


@functools.cache
def table(device: torch.device) -> Entries:
    """The entries for this device; empty if there is no file or it does not fit, which is logged."""
    here = machine(device)
    try:
        path = tile_tables.path_for(here)
        found = tile_tables.read(path, here).tiles()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:  # no home, or one that must not be read
        logger.warning("No tile table: %s", error)
        return {}
    except ValueError as error:
        logger.warning("Ignoring the tile table %s: %s", path, error)
        return {}
    logger.info("Tiles of %d shapes and token counts from %s", len(found), path)
    return found


@contextlib.contextmanager
def trying(tiles: tuple[Tile, Tile] | None) -> Iterator[None]:
    """Within, every plan has these tiles where it may; None: the default ones, whatever a table says."""
    _forced.append(Forced(tiles))
    try:
        yield
    finally:
        _forced.pop()
