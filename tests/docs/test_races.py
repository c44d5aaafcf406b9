"""The tables of kernels against each other, from altered copies of a receipt."""

import copy
import json

import pytest
from documents import ROOT

from scripts.pages import races

RECEIPTS = ROOT / "benchmarks" / "receipts"


@pytest.fixture
def receipt():
    return json.loads((RECEIPTS / "h200-bench-uniform.json").read_text())


def new_receipt(receipt):
    """What a later run looks like: Marlin, FlashInfer and humming beside the others, one of them failing."""
    new = copy.deepcopy(receipt) | {"versions": {"sglang": "0.5.17", "humming-kernels": "not installed"}}
    new["failed"] = {"v4-flash-tp1": {"humming": "ModuleNotFoundError: No module named 'humming'"}}
    for row in new["rows"]:
        row["us"] |= {"marlin": 1000.0, "flashinfer sm90 mixed": row["us"]["ours bf16"] * 1.02}
    new["rows"][0]["routing"], new["rows"][1]["routing"] = "speculative", "skewed"
    return new


def test_the_newest_run_wins_and_the_fastest_of_all_peers_counts(receipt, tmp_path, monkeypatch):
    first = new_receipt(receipt)
    second = copy.deepcopy(first)
    second["rows"][4]["raw"]["ours bf16"] = [t * 1.5 for t in second["rows"][4]["raw"]["ours bf16"]]
    second["rows"][4]["us"]["ours bf16"] *= 1.5
    for row in [*first["rows"], *second["rows"]]:  # new contestants need samples to be compared
        row["raw"] |= {n: [row["us"][n]] * 15 for n in ("marlin", "flashinfer sm90 mixed")}
    (tmp_path / "h200-table.json").write_text(json.dumps(first))
    (tmp_path / "h200-table-2.json").write_text(json.dumps(second))
    monkeypatch.setattr(races, "RECEIPTS", tmp_path)
    text = races.tables()
    header = next(line for line in text.splitlines() if line.startswith("| layer | tokens"))
    assert "Marlin µs | FlashInfer µs" in header
    assert "humming" not in header
    row = next(line for line in text.splitlines() if line.startswith("| TP1 | 4 |"))
    assert "| 1.02x | missed: 1.35x the best |" in row
    assert "| 1000.0 |" in row
    assert "* humming, TP1: ModuleNotFoundError: No module named 'humming'" in text
    assert "ours bf16: 35 of 36 rows agree; not: TP1 uniform T=16 (+50.0%)" in text
    assert "sglang 0.5.17" in text


def test_the_targets_are_said():
    assert "floor: 1 token 1.60x and 0.50; 2 to 4 tokens 1.35x and 0.62; 5 to 64 tokens" in races.legend()
    assert races.legend().endswith("257 to 8192 tokens 1.00x.")


def test_other_shapes_get_a_table_of_their_own(receipt, tmp_path, monkeypatch):
    (tmp_path / "h200-table.json").write_text(json.dumps(new_receipt(receipt)))
    monkeypatch.setattr(races, "RECEIPTS", tmp_path)
    assert "Other shapes" not in races.tables()
    shapes = copy.deepcopy(receipt)
    for row in shapes["rows"]:
        row["shape"] = row["shape"].replace("v4-flash", "v4.1-flash")
    (tmp_path / "h200-shapes.json").write_text(json.dumps(shapes))
    text = races.tables()
    assert "## Other shapes, uniform routing" in text
    assert "| V4.1-Flash TP4 | 4096 |" in text


@pytest.mark.parametrize(
    ("python", "said"), [(None, "µs."), (12.4, "at most 12 µs (target 40: met)."), (41, "missed).")]
)
def test_the_hosts_target_is_about_python(receipt, tmp_path, monkeypatch, python, said):
    monkeypatch.setattr(races, "RECEIPTS", tmp_path)
    if python is not None:
        rows = [{"best_us": 3.0}, {"best_us": python}]
        (tmp_path / "cpu-host-cost.json").write_text(json.dumps({"rows": rows}))
    receipt["host_us"] = {"v4-flash-tp1": {"ours bf16": 46.6, "marlin": 400.0}}
    line = races.host_line(receipt)
    assert "TP1 47 µs" in line
    assert "400" not in line
    assert line.endswith(said)


def test_without_a_peer_there_is_no_target_met(receipt):
    row = {**receipt["rows"][0], "us": {"ours bf16": 20.0}}
    assert races.verdict(row) == ("-", "no peer")
