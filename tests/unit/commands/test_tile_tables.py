"""The form of tile tables: what is read back, and what is said of a file that is not one for here."""

import json

import pytest

from sglang_sm120 import __version__
from sglang_sm120.commands.tune import tables
from sglang_sm120.kernels.sm120 import tile_tables
from sglang_sm120.kernels.sm120.tile_tables import Machine, Shape, Table, Tile

HERE = Machine("A", 188, "3.8.0")
SHAPE = Shape(256, 4096, 1024, 6)
POINT = {"experts": 256, "hidden": 4096, "inter": 1024, "top_k": 6, "tokens": 4, "default_us": 2.0}
GOOD = POINT | {"us": 1.0, "gate_up": [32, 8, 3, 1, 1], "down": [64, 8, 2, 1, 1]}


def table(**changes):
    return {"schema": 1, "gpu": "A", "sms": 188, "triton": "3.8.0", "entries": [GOOD]} | changes


def saved(tmp_path, data):
    path = tmp_path / "tiles.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "new" / "tiles.json"
    tables.write(path, Table(HERE, (GOOD,), (POINT,)))
    found = tile_tables.read(path, HERE)
    assert found.tiles() == {(SHAPE, 4): (Tile(32, 8), Tile(64, 8, 2))}
    assert found.kept == (POINT,)
    assert json.loads(path.read_text())["overlay"] == __version__
    assert [p.name for p in path.parent.iterdir()] == ["tiles.json"]


BROKEN = {
    "not JSON": ("{", "not JSON"),
    "no table": ([], "no schema number"),
    "another GPU": (table(gpu="B"), "it is for gpu 'B', this is 'A'"),
    "another SM count": (table(sms=170), "it is for sms 170, this is 188"),
    "another Triton": (table(triton="2.0.0"), "it is for triton '2.0.0', this is '3.8.0'"),
    "no machine": (table(gpu=None), "does not say for which gpu"),
    "no entries": (table(entries=None), "no list of entries"),
    "missing field": (table(entries=[{k: v for k, v in GOOD.items() if k != "down"}]), "lacks a field: 'down'"),
    "missing shape": (table(entries=[{k: v for k, v in GOOD.items() if k != "inter"}]), "lacks a field: 'inter'"),
    "not a number": (table(entries=[GOOD | {"hidden": "4096"}]), "not positive numbers"),
    "a number for a list": (table(entries=[GOOD | {"down": 8}]), "lacks a field: 'down'"),
    "no entry at all": (table(entries=[7]), "lacks a field"),
    "a tile that is no candidate": (
        table(entries=[GOOD | {"gate_up": [128, 8, 3, 1, 1]}]),
        "not one of the candidates",
    ),
    "tiles without steps a pass": (
        table(entries=[GOOD | {"gate_up": [32, 8, 3, 1], "down": [64, 8, 2, 1]}]),
        "not one of the candidates",
    ),
    "two widths": (table(entries=[GOOD | {"down": [32, 16, 3, 1, 1]}]), "not one of the candidates"),
    "a routing that is none": (table(kept=[POINT | {"routing": "wild"}]), "uniform, speculative"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_or_stale_table_says_why(tmp_path, name):
    data, says = BROKEN[name]
    with pytest.raises(ValueError, match=r"\w") as error:
        tile_tables.read(saved(tmp_path, data), HERE)
    assert says in str(error.value)


def test_a_table_of_a_newer_version_names_that_version(tmp_path):
    with pytest.raises(
        ValueError, match=r"a tile table of schema 7; .* reads schema 1\. It needs sglang-sm120 0\.9\.0"
    ):
        tile_tables.read(saved(tmp_path, table(schema=7, overlay="0.9.0")), HERE)


def test_an_interrupted_write_leaves_the_old_table(tmp_path, monkeypatch):
    path = saved(tmp_path, table())
    before = path.read_text()

    def interrupt(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tables.write(path, Table(HERE))
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
