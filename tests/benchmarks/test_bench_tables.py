"""compare.py on the receipts that are there and on altered copies of them."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.reports import compare

ROOT = Path(__file__).resolve().parents[2]
RECEIPTS = ROOT / "benchmarks/receipts"


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


def test_two_halves_of_a_run_agree_and_a_twentieth_more_does_not(receipt):
    first, second = scaled(receipt, 1, slice(0, 7)), scaled(receipt, 1, slice(7, 15))
    same = [ok for *_, ok in compare.repeats(first, second)]
    slower = [ok for *_, ok in compare.repeats(first, scaled(receipt, 1.05, slice(7, 15)))]
    assert len(same) > 150
    assert sum(same) >= 0.97 * len(same)
    assert sum(slower) <= 0.15 * len(slower)  # rows whose samples scatter by more than that


def test_the_repeat_names_both_medians_and_the_rows_that_differ(receipt):
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


def test_runs_of_different_commits_are_not_a_repeat(receipt):
    with pytest.raises(ValueError, match=r"not the same commit: 963fded.* and deadbeef"):
        compare.repeats(receipt, {**receipt, "commit": "deadbeef"})


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
