"""What a tile table changes in a launch, and the search that fills one."""

from __future__ import annotations

import json
import random

import pytest
import torch
import triton

from sglang_sm120.commands.tune import search, tables
from sglang_sm120.commands.tune.search import Comparison, Search
from sglang_sm120.kernels.sm120 import fp4_moe, tile_tables
from sglang_sm120.kernels.sm120.fp4_moe.host import schedule, tuning
from sglang_sm120.kernels.sm120.fp4_moe.host.schedule import Work
from sglang_sm120.kernels.sm120.tile_tables import Machine, Shape, Table, Tile

SHAPE = Shape(256, 4096, 1024, 6)
HERE = Machine("A", 188, triton.__version__)
GOOD = {
    "experts": 256, "hidden": 4096, "inter": 1024, "top_k": 6, "tokens": 4, "us": 1.0, "default_us": 2.0,
    "gate_up": [32, 8, 3, 1, 1], "down": [64, 8, 2, 1, 1],
}  # fmt: skip
TABLE = {"schema": 1, "gpu": "A", "sms": 188, "triton": triton.__version__, "entries": [GOOD]}


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


@pytest.mark.parametrize("shape", [(4096 + 32, 1024), (4096, 1024 + 128), (256 + 32, 256)])
def test_two_steps_a_pass_stay_out_where_rows_or_columns_leave_a_rest(shape):
    """A table may name any shape; what its loop cannot run over would end the launch in the compiler."""
    work = Work(4, 6, 256, *shape)
    p = schedule.plan(work, 188, False)
    one, two = Tile(64, 8), Tile(64, 8, warps=2, unroll=2)
    assert tuning._with_tiles(p, work, (one, two)) == p


@pytest.fixture
def pretend_gpu(monkeypatch, tmp_path):
    """A CUDA device that only has a name and a size; the home where its table would be."""
    monkeypatch.setenv("SGLANG_SM120_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A")
    monkeypatch.setattr(schedule, "sm_count", lambda device: 188)
    monkeypatch.setattr(schedule, "is_sm90", lambda device: False)
    caches = (tuning.table, tuning._plan)
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    for cache in caches:
        cache.cache_clear()


DEVICE = torch.device("cuda", 0)


def test_a_device_without_a_table_has_the_default_plan(pretend_gpu):
    work = Work(3, 6, 256, 4096, 1024)
    assert tuning.plan(DEVICE, work) == schedule.plan(work, 188, False)


def test_a_table_serves_token_counts_up_to_its_own(pretend_gpu):
    (pretend_gpu / HERE.file_name).write_text(json.dumps(TABLE))
    tiles = {t: tuning.plan(DEVICE, Work(t, 6, 256, 4096, 1024)).down for t in (2, 3, 4, 5)}
    assert tiles[3] == tiles[4] == Tile(64, 8, 2, 1)
    assert Tile(64, 8, 2, 1) not in (tiles[2], tiles[5])


def test_a_tile_of_one_format_is_not_the_others(pretend_gpu):
    """A row without a format is MXFP4's."""
    rows = [GOOD, GOOD | {"format": "nvfp4", "down": [64, 8, 4, 1, 1]}]
    (pretend_gpu / HERE.file_name).write_text(json.dumps(TABLE | {"entries": rows}))
    stages = [
        tuning.plan(DEVICE, Work(4, 6, 256, 4096, 1024, format=weights)).down.stages
        for weights in (fp4_moe.MXFP4, fp4_moe.NVFP4)
    ]
    assert stages == [2, 4]
    assert (str(SHAPE), str(tile_tables.shape_of(rows[1]))) == ("256,4096,1024,6", "256,4096,1024,6,nvfp4")


def test_while_a_search_runs_the_default_is_the_default(pretend_gpu):
    """Else tiles would be compared with those that an earlier search found."""
    (pretend_gpu / HERE.file_name).write_text(json.dumps(TABLE))
    work = Work(4, 6, 256, 4096, 1024)
    with tuning.trying(None):
        assert tuning.plan(DEVICE, work) == schedule.plan(work, 188, False)
    assert tuning.plan(DEVICE, work).down == Tile(64, 8, 2, 1)


def test_a_broken_table_is_reported_and_ignored(pretend_gpu, caplog):
    path = pretend_gpu / HERE.file_name
    path.write_text("{")
    assert tuning.table(DEVICE) == {}
    assert str(path) in caplog.text
    assert "not JSON" in caplog.text


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null"])
def test_a_home_that_cannot_be_read_costs_no_launch(pretend_gpu, monkeypatch, home):
    monkeypatch.setenv("SGLANG_SM120_HOME", home)
    assert tuning.table(DEVICE) == {}


def test_no_home_costs_no_launch(pretend_gpu, monkeypatch, caplog):
    monkeypatch.delenv("SGLANG_SM120_HOME")
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert tuning.table(DEVICE) == {}
    assert "HOME" in caplog.text


WANT = Tile(64, 8, 2, 1), Tile(32, 8, 4, 1)


class FakeGpu:
    """Times that wander: each comparison's ratio is off by up to `noise`, and the clock ticks."""

    def __init__(self, gain=0.3, noise=0.02, slow=0.0):
        self.gain, self.noise, self.slow = gain, noise, slow
        self.random, self.now, self.asked = random.Random(0), 0.0, []

    def clock(self):
        return self.now

    def __call__(self, shape, tokens, tiles, rounds):
        self.now += 1
        self.asked.append((tokens, tiles, rounds))
        if tiles and tiles[0] == Tile(32, 8, 2, 1):
            return None  # other bits: must not win although it would be fastest
        ratio = 1.0
        if tiles:
            ratio = 1 + self.slow - self.gain * ((tiles[0] == WANT[0]) + 0.2 * (tiles[1] == WANT[1]))
        ratio *= 1 + self.random.uniform(-self.noise, self.noise)
        return Comparison(100 * ratio, 100, ratio)


def searched(timer, points, table=None, seconds=1e9, **more):
    found = Search(timer, "uniform", seconds, clock=timer.clock, **more)
    return found.run(table or Table(HERE), points)


def test_the_search_keeps_the_fastest_and_resumes(tmp_path):
    timer, path = FakeGpu(), tmp_path / "tiles.json"
    table, complete = searched(
        timer, [(SHAPE, 1), (SHAPE, 2)], save=lambda table: tables.write(path, table)
    )  # fmt: skip
    assert complete
    (entry, _) = tile_tables.read(path, HERE).entries
    assert tile_tables.read(path, HERE).tiles()[SHAPE, 1] == (Tile(64, 8, 2), Tile(32, 8, 4))
    assert entry["us"] < entry["default_us"]
    assert 0 < entry["noise"] <= 0.02
    timer.asked.clear()
    again, _ = searched(timer, [(SHAPE, 1), (SHAPE, 2), (SHAPE, 4)], table)
    assert {tokens for tokens, _, _ in timer.asked} == {4}
    assert len(again.entries) == 3


def test_only_tiles_that_may_run_are_tried():
    """Two steps a pass need whole row tiles and an even number of steps; 288 is no multiple of 64, nor of 256."""
    for shape, two_steps in ((Shape(16, 256, 288, 4), 0), (Shape(16, 288, 256, 4), 0), (Shape(16, 256, 256, 4), 9)):
        timer = FakeGpu()
        searched(timer, [(shape, 4)])
        tried = {tile for _, tiles, _ in timer.asked if tiles for tile in tiles}
        assert sum(tile.unroll == 2 for tile in tried) == two_steps


def test_noise_is_no_gain():
    """Eighteen and more candidates that are all as fast as the default: the luckiest must not get into the table."""
    timer = FakeGpu(gain=0.0, noise=0.05)
    points = [(Shape(256, 4096, 1024 + 32 * i, 6), 4) for i in range(20)]
    table, _ = searched(timer, points)
    assert len(table.kept) >= 19
    assert all(row["noise"] > 0.01 for row in table.kept)
    timer.asked.clear()
    searched(timer, points[:1], table)
    assert timer.asked == []  # what was settled is not measured again


def test_a_gain_within_the_noise_is_none_and_the_same_gain_without_noise_is_one():
    gain = {"gain": 0.03}
    assert len(searched(FakeGpu(**gain, noise=0.1), [(SHAPE, 4)])[0].entries) == 0
    assert len(searched(FakeGpu(**gain, noise=0.001), [(SHAPE, 4)])[0].entries) == 1


def test_the_time_ends_the_search_and_drops_no_finished_point():
    timer = FakeGpu()
    table, complete = searched(timer, [(SHAPE, t) for t in (1, 2, 4)], seconds=90)
    assert not complete
    assert timer.now <= 92
    assert [row["tokens"] for row in table.entries] == [1, 2]


def test_an_interruption_keeps_what_was_saved():
    timer, saved = FakeGpu(), []

    def interrupt(progress):
        if progress.done == 1 and progress.share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(timer, [(SHAPE, 1), (SHAPE, 2)], save=saved.append, progress=interrupt)
    assert [row["tokens"] for row in saved[-1].entries] == [1]


def test_wide_groups_are_tried_where_an_expert_has_the_routes_for_them():
    assert {c.tokens for c in search._candidates(SHAPE, 256)} == {8}
    assert {c.tokens for c in search._candidates(SHAPE, 512)} == {8, 16, 32}


@pytest.mark.gpu
def test_a_minute_on_a_gpu_gives_a_table_that_launches_use(device, tmp_path, monkeypatch):
    from sglang_sm120.commands.tune import command as tune

    monkeypatch.setenv("SGLANG_SM120_HOME", str(tmp_path))
    document = tune.run([Shape(16, 1024, 256, 4)], [1, 16], 1)
    assert document["complete"]
    assert len(document["entries"]) + len(document["kept"]) == 2
    assert tune.check()["errors"] == []
