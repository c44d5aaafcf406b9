"""Which rows a race has, in which order, and what is left of one that ends early."""

from __future__ import annotations

import importlib
import json

import pytest
from race_stand_ins import receipt_of


def test_one_option_runs_a_set_of_rows(bench, monkeypatch, tmp_path):
    rows_of = importlib.import_module("profiles").rows_of
    profile = rows_of(["tiny", "other"], ["uniform"], [1]) + rows_of(["tiny"], ["skewed"], [2])
    monkeypatch.setitem(bench.PROFILES, "table", profile)
    receipt = receipt_of(bench, monkeypatch, tmp_path, "--rows", "table", "--contestants", "good")
    assert [(r["shape"], r["routing"], r["tokens"]) for r in receipt["rows"]] == [
        ("tiny", "uniform", 1), ("tiny", "skewed", 2), ("other", "uniform", 1),
    ]  # fmt: skip

    receipt = receipt_of(bench, monkeypatch, tmp_path, "--rows", "table", "--shapes", "other", "--contestants", "good")
    assert [r["shape"] for r in receipt["rows"]] == ["other"]


def test_a_shape_that_there_is_not_is_named(bench, monkeypatch, tmp_path):
    """Before anything is measured or an earlier receipt is overwritten."""
    with pytest.raises(SystemExit, match=r"--shapes names 'tinny', expected some of tiny"):
        receipt_of(bench, monkeypatch, tmp_path, "--shapes", "tinny")
    monkeypatch.setitem(bench.PROFILES, "table", [("tiny", "uniform", 1)])
    with pytest.raises(SystemExit, match=r"--shapes names 'other', expected some of tiny$"):
        receipt_of(bench, monkeypatch, tmp_path, "--rows", "table", "--shapes", "tiny,other")


def test_the_table_holds_v4_flash(bench_path):
    assert len(importlib.import_module("profiles").PROFILES["table"]) == 4 * (12 + 9 + 9)


def test_the_sets_that_follow_each_other_hold_every_shape_and_every_row_once(bench_path):
    profiles, shapes = importlib.import_module("profiles"), importlib.import_module("workload").SHAPES
    assert shapes["v4.1-flash-tp8"] == (384, 5120, 288, 6)
    assert shapes["v4.1-dspark-tp4"] == (128, 5120, 576, 3)
    assert {shapes[f"reap-{n}-tp1"] for n in (144, 160, 180)} == {(n, 4096, 2048, 6) for n in (144, 160, 180)}
    rows = [row for name in ("first", "routings", "rest") for row in profiles.PROFILES[name]]
    assert len(set(rows)) == len(rows)
    assert {s for s, _, _ in rows} == set(shapes)
    assert {f"{m}-tp{n}" for m in ("v4-flash", "v4-pro", "v4.1-flash", "v4.1-dspark") for n in (1, 2, 4, 8)} < set(
        shapes
    )
    assert {(r, t) for _, r, t in rows} >= {("uniform", t) for t in profiles.TOKENS} | {("skewed", 64)}
    compiled = {(s, t) for s, _, t in profiles.PROFILES["first"]}
    assert {(s, t) for s, _, t in profiles.PROFILES["routings"]} <= compiled


def test_a_budget_that_ends_early_leaves_the_first_rows_and_names_the_others(bench, monkeypatch, tmp_path):
    profiles = importlib.import_module("profiles")
    monkeypatch.setitem(profiles.PROFILES, "first", profiles.rows_of(["tiny", "other"], ["uniform"], [1]))
    monkeypatch.setitem(profiles.PROFILES, "rest", profiles.rows_of(["other", "tiny"], ["uniform"], [2]))
    left = iter([0.0, 0.0, 0.0, 1e12])  # before each row the race asks what the time is
    monkeypatch.setattr(bench, "out_of_time", lambda deadline: next(left) > deadline)
    receipt = receipt_of(bench, monkeypatch, tmp_path, "--rows", "first,rest", "--contestants", "good,wrong")
    keys = [(r["shape"], r["routing"], r["tokens"]) for r in receipt["rows"]]
    assert keys == [("tiny", "uniform", 1), ("other", "uniform", 1), ("other", "uniform", 2)]
    assert receipt["not_run"] == [["tiny", "uniform", 2]]
    assert all(len(row["raw"]["good"]) == 2 for row in receipt["rows"])
    assert "relative error" in receipt["failed"]["tiny"]["wrong"]


def test_a_run_that_is_killed_leaves_the_shapes_before(bench, monkeypatch, tmp_path):
    class Killed(BaseException):
        pass

    def killed(*_):
        whole.append(json.loads((tmp_path / "receipt.json").read_text()))
        raise Killed

    run, whole = bench.run_shape, []
    monkeypatch.setattr(bench, "run_shape", lambda shape, *a: run(shape, *a) if shape == "tiny" else killed())
    options = ["--shapes", "tiny,other", "--tokens", "1", "--routings", "uniform", "--contestants", "good"]
    with pytest.raises(Killed):
        receipt_of(bench, monkeypatch, tmp_path, *options)
    assert [row["shape"] for row in whole[0]["rows"]] == ["tiny"]


def test_a_set_that_there_is_not_is_named(bench, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match=r"--rows names 'al', expected some of table, first, routings, rest"):
        receipt_of(bench, monkeypatch, tmp_path, "--rows", "first,al")


def test_the_last_lines_say_how_far_behind_the_fastest_peer_is():
    short = importlib.import_module("benchmarks.reports.short")
    rows = [
        {"shape": "a-tp1", "routing": "uniform", "tokens": 1, "us": {"ours bf16": 10.0, "ours mxfp8": 1, "slow": 30.0,
                                                                    "quick one": 15.0}},
        {"shape": "a-tp1", "routing": "uniform", "tokens": 4, "us": {"ours bf16": 10.0}},
        {"shape": "a-tp1", "routing": "skewed", "tokens": 4, "us": {"slow": 10.0}},
    ]  # fmt: skip
    lines = short.table({"rows": rows, "not_run": [("a-tp1", "uniform", 8)]}).splitlines()
    assert lines[0].endswith("uniform     1: 1.50x quick  4: alone")
    assert "4: ours failed" in lines[1]
    assert lines[-1] == "3 rows, 1 not run"
