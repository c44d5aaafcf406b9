"""compare.py and table.py on the receipts that are there and on altered copies of them."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.reports import compare, table

ROOT = Path(__file__).resolve().parents[2]
RECEIPTS = ROOT / "benchmarks/receipts"


@pytest.fixture(scope="module")
def tools():
    return compare, table


@pytest.fixture
def receipt():
    return json.loads((RECEIPTS / "h200-bench-uniform.json").read_text())


def scaled(receipt, factor, part=slice(None)):
    """The receipt with only some samples of each row, all times multiplied."""
    new = copy.deepcopy(receipt)
    for row in new["rows"]:
        row["raw"] = {n: [t * factor for t in times[part]] for n, times in row["raw"].items()}
        row["us"] = {n: sorted(times)[len(times) // 2] for n, times in row["raw"].items()}
    return new


def test_two_halves_of_a_run_agree_and_a_twentieth_more_does_not(tools, receipt):
    compare, _ = tools
    first, second = scaled(receipt, 1, slice(0, 7)), scaled(receipt, 1, slice(7, 15))
    same = [ok for *_, ok in compare.repeats(first, second)]
    slower = [ok for *_, ok in compare.repeats(first, scaled(receipt, 1.05, slice(7, 15)))]
    assert len(same) > 150
    assert sum(same) >= 0.97 * len(same)
    assert sum(slower) <= 0.15 * len(slower)  # rows whose samples scatter by more than that


def test_the_repeat_names_both_medians_and_the_rows_that_differ(tools, receipt):
    compare, _ = tools
    second = copy.deepcopy(receipt)
    row = second["rows"][0]
    row["raw"]["triton_kernels"] = [t * 1.2 for t in row["raw"]["triton_kernels"]]
    row["us"]["triton_kernels"] *= 1.2
    lines = compare.repeat_lines(receipt, second)
    changed = [line for line in lines[:-1] if not line.endswith("agree")]
    assert len(changed) == 1
    assert "T=    1 triton_kernels" in changed[0]
    assert "+20.0%" in changed[0]
    assert lines[-1] == f"{len(lines) - 2} of {len(lines) - 1} agree"


def test_runs_of_different_commits_are_not_a_repeat(tools, receipt):
    compare, _ = tools
    with pytest.raises(ValueError, match=r"not the same commit: 963fded.* and deadbeef"):
        compare.repeats(receipt, {**receipt, "commit": "deadbeef"})


def new_receipt(receipt):
    """What a later run looks like: Marlin, FlashInfer and humming beside the others, one of them failing."""
    new = copy.deepcopy(receipt) | {"versions": {"sglang": "0.5.17", "humming-kernels": "not installed"}}
    new["failed"] = {"v4-flash-tp1": {"humming": "ModuleNotFoundError: No module named 'humming'"}}
    for row in new["rows"]:
        row["us"] |= {"marlin": 1000.0, "flashinfer sm90 mixed": row["us"]["ours bf16"] * 1.02}
    new["rows"][0]["routing"], new["rows"][1]["routing"] = "speculative", "skewed"
    return new


def test_the_newest_run_wins_and_the_fastest_of_all_peers_counts(tools, receipt, tmp_path, monkeypatch):
    _, table = tools
    first = new_receipt(receipt)
    second = copy.deepcopy(first)
    second["rows"][4]["raw"]["ours bf16"] = [t * 1.5 for t in second["rows"][4]["raw"]["ours bf16"]]
    second["rows"][4]["us"]["ours bf16"] *= 1.5
    for row in [*first["rows"], *second["rows"]]:  # new contestants need samples to be compared
        row["raw"] |= {n: [row["us"][n]] * 15 for n in ("marlin", "flashinfer sm90 mixed")}
    (tmp_path / "h200-table.json").write_text(json.dumps(first))
    (tmp_path / "h200-table-2.json").write_text(json.dumps(second))
    monkeypatch.setattr(table, "RECEIPTS", tmp_path)
    text = table.tables()
    header = next(line for line in text.splitlines() if line.startswith("|  | T"))
    assert "Marlin µs | FlashInfer µs" in header
    assert "humming" not in header
    row = next(line for line in text.splitlines() if line.startswith("| TP1 | 4 |"))
    assert "| 1.02x | missed: 1.35x the best |" in row
    assert "| 1000.0 |" in row
    assert "* humming, TP1: ModuleNotFoundError: No module named 'humming'" in text
    assert "ours bf16: 35 of 36 rows agree; not: TP1 uniform T=16 (+50.0%)" in text
    assert "sglang 0.5.17" in text


def test_the_targets_are_said(tools):
    _, table = tools
    assert "floor: 1 token 1.60x and 0.50; 2 to 4 tokens 1.35x and 0.62; 5 to 64 tokens" in table.legend()
    assert table.legend().endswith("257 to 8192 tokens 1.00x.")


def test_other_shapes_get_a_table_of_their_own(tools, receipt, tmp_path, monkeypatch):
    _, table = tools
    (tmp_path / "h200-table.json").write_text(json.dumps(new_receipt(receipt)))
    monkeypatch.setattr(table, "RECEIPTS", tmp_path)
    assert "Other shapes" not in table.tables()
    shapes = copy.deepcopy(receipt)
    for row in shapes["rows"]:
        row["shape"] = row["shape"].replace("v4-flash", "v4.1-flash")
    (tmp_path / "h200-shapes.json").write_text(json.dumps(shapes))
    text = table.tables()
    assert "### Other shapes, uniform routing" in text
    assert "| V4.1-Flash TP4 | 4096 |" in text


@pytest.mark.parametrize(
    ("python", "said"), [(None, "µs."), (12.4, "at most 12 µs (target 40: met)."), (41, "missed).")]
)
def test_the_hosts_target_is_about_python(tools, receipt, tmp_path, monkeypatch, python, said):
    _, table = tools
    monkeypatch.setattr(table, "RECEIPTS", tmp_path)
    if python is not None:
        rows = [{"best_us": 3.0}, {"best_us": python}]
        (tmp_path / "cpu-host-cost.json").write_text(json.dumps({"rows": rows}))
    receipt["host_us"] = {"v4-flash-tp1": {"ours bf16": 46.6, "marlin": 400.0}}
    line = table.host_line(receipt)
    assert "TP1 47 µs" in line
    assert "400" not in line
    assert line.endswith(said)


def test_without_a_peer_there_is_no_target_met(tools, receipt):
    _, table = tools
    row = {**receipt["rows"][0], "us": {"ours bf16": 20.0}}
    assert table.verdict(row) == ("-", "no peer")


BAD = {
    "missing": (None, "No such file"),
    "cut short": ('{"schema": 2, "kind": "bench_mo', "Unterminated string"),
    "of a newer schema": ('{"schema": 3, "kind": "bench_moe", "rows": []}', "reads schema 2"),
    "of another kind": ('{"schema": 1, "kind": "selftest", "rows": []}', "expected a receipt of bench_moe"),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("script", ["compare.py", "plot.py"])
def test_a_receipt_that_cannot_be_read_is_named_in_one_line(what, script, tmp_path):
    text, said = BAD[what]
    file = tmp_path / "receipt.json"
    if text is not None:
        file.write_text(text)
    files = [str(file), str(RECEIPTS / "h200-table.json")] if script == "compare.py" else [str(file), "--out", "."]
    command = [sys.executable, str(ROOT / "benchmarks" / "reports" / script), *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert str(file) in done.stderr
    assert said in done.stderr
