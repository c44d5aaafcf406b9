"""Tile tables: the search, and that a stale or broken file is reported and ignored."""

from __future__ import annotations

import json

import pytest
import torch
import triton

from sglang_sm120.kernels.sm120.mxfp4_moe import schedule, tuning
from sglang_sm120.kernels.sm120.mxfp4_moe.schedule import Tile, Work

SHAPE = tuning.Shape(256, 4096, 1024, 6)
GOOD = {
    "experts": 256, "hidden": 4096, "inter": 1024, "top_k": 6, "tokens": 4, "us": 1.0, "default_us": 2.0,
    "gate_up": [32, 8, 3, 1], "down": [64, 8, 2, 1],
}  # fmt: skip


def table(**changes):
    return {"schema": 1, "gpu": "A", "sms": 188, "triton": triton.__version__, "entries": [GOOD]} | changes


def saved(tmp_path, data):
    path = tmp_path / "tiles.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_a_table_is_read(tmp_path):
    entries = tuning.read(saved(tmp_path, table()), "A", 188)
    assert entries == {(SHAPE, 4): (Tile(32, 8, 3, 1), Tile(64, 8, 2, 1))}


BROKEN = {
    "not JSON": "{",
    "schema": table(schema=2),
    "another GPU": table(gpu="B"),
    "another SM count": table(sms=170),
    "another Triton": table(triton="2.0.0"),
    "no entries": table(entries=None),
    "missing field": table(entries=[{k: v for k, v in GOOD.items() if k != "down"}]),
    "not a number": table(entries=[GOOD | {"hidden": "4096"}]),
    "a tile that is no candidate": table(entries=[GOOD | {"gate_up": [128, 8, 3, 1]}]),
    "two widths": table(entries=[GOOD | {"down": [32, 16, 3, 1]}]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_or_stale_table_says_why(tmp_path, name):
    with pytest.raises(ValueError, match=r"\w"):
        tuning.read(saved(tmp_path, BROKEN[name]), "A", 188)


def test_a_broken_table_is_reported_and_ignored(tmp_path, monkeypatch, caplog):
    path = saved(tmp_path, "{")
    monkeypatch.setattr(tuning, "default_path", lambda device: path)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A")
    monkeypatch.setattr(schedule, "sm_count", lambda device: 188)
    tuning.table.cache_clear()
    assert tuning.table(torch.device("cuda", 0)) == {}
    assert str(path) in caplog.text
    tuning.table.cache_clear()


def test_tiles_take_the_place_of_the_default_where_they_may():
    tiles = Tile(32, 8, 2, 1), Tile(64, 8, 2, 1)
    work = Work(64, 6, 256, 4096, 1024)
    p = schedule.plan(work, 188, False)
    tuned = tuning._with_tiles(p, work, tiles)
    assert (tuned.gate_up, tuned.down) == tiles
    assert tuned.groups == min(384, 256 + 384 // 8)
    many = Work(4096, 6, 256, 4096, 1024)
    assert tuning._with_tiles(schedule.plan(many, 188, False), many, tiles) == schedule.plan(many, 188, False)
    rounded = Work(64, 6, 256, 4096, 1024, mxfp8=True)
    assert tuning._with_tiles(schedule.plan(rounded, 188, False), rounded, tiles) == schedule.plan(rounded, 188, False)


def test_the_search_keeps_the_fastest_and_resumes(tmp_path):
    want = Tile(64, 8, 2, 1), Tile(32, 8, 4, 1)
    asked = []

    def timer(shape, tokens, tiles):
        asked.append(tokens)
        if tiles is None:
            return 100.0
        if tiles[0] == Tile(32, 8, 2, 1):
            return None  # other bits: must not win although it would be fastest
        return 90.0 - 20 * (tiles[0] == want[0]) - 5 * (tiles[1] == want[1])

    path = tmp_path / "tiles.json"
    first = tuning.search([SHAPE], [1, 2], 60, timer, found=lambda e, i, n: tuning.write(path, "A", 188, e))
    assert [e["tokens"] for e in first] == [1, 2]
    assert tuning.read(path, "A", 188)[SHAPE, 2] == want
    asked.clear()
    again = tuning.search([SHAPE], [1, 2, 4], 60, timer, done=first)
    assert set(asked) == {4}
    assert len(again) == 3
    assert tuning.search([SHAPE], [1], 60, lambda s, t, tiles: 100.0) == []  # nothing is faster than the default
    assert tuning.search([SHAPE], [1], -1, timer) == []  # no time


@pytest.mark.gpu
def test_every_candidate_gives_the_same_bits(device):
    timer = tuning.GpuTimer(torch.device(device, 0))
    shape = tuning.Shape(16, 1024, 288, 4)
    for tokens in (1, 40):
        assert timer(shape, tokens, None)
        for tile in tuning.CANDIDATES:
            assert timer(shape, tokens, (tile, tile)) is not None


@pytest.fixture
def pretend_gpu(monkeypatch, tmp_path):
    """A CUDA device that only has a name, a size and a place for its table."""
    path = tmp_path / "tiles.json"
    monkeypatch.setattr(tuning, "default_path", lambda device: path)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A")
    monkeypatch.setattr(schedule, "sm_count", lambda device: 188)
    monkeypatch.setattr(schedule, "is_sm90", lambda device: False)
    caches = (tuning.table, tuning._plan)
    for cache in caches:
        cache.cache_clear()
    yield path
    for cache in caches:
        cache.cache_clear()


def test_a_device_without_a_table_has_the_default_plan(pretend_gpu):
    work = Work(3, 6, 256, 4096, 1024)
    assert tuning.plan(torch.device("cuda", 0), work) == schedule.plan(work, 188, False)


def test_a_table_serves_token_counts_up_to_its_own(pretend_gpu):
    pretend_gpu.write_text(json.dumps(table()))
    tiles = {t: tuning.plan(torch.device("cuda", 0), Work(t, 6, 256, 4096, 1024)).down for t in (2, 3, 4, 5)}
    assert tiles[3] == tiles[4] == Tile(64, 8, 2, 1)
    assert Tile(64, 8, 2, 1) not in (tiles[2], tiles[5])
