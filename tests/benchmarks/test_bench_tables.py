"""compare.py and the tables of races on receipts that are made here."""

from __future__ import annotations

import copy
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.reports import compare, plot
from scripts.pages import races

ROOT = Path(__file__).resolve().parents[2]


COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKENS = (1, 2, 4, 16, 256, 4096)
CONTESTANTS = {"ours bf16": 1.0, "ours mxfp8": 1.05, "triton_kernels": 2.0, "naive dot_scaled": 4.0}  # times ours
SAMPLES = 15


@pytest.fixture
def receipt():
    """A run of the race: three shapes, uniform routing; samples within a percent of each other, as on a quiet GPU."""
    shapes = [f"v4-flash-tp{n}" for n in (1, 2, 4)]
    rows = []
    for shape in shapes:
        for tokens in TOKENS:
            ours = 20.0 * tokens**0.5
            raw = {
                name: [times * ours * (1 + 0.01 * (7 * i % SAMPLES / SAMPLES - 0.5)) for i in range(SAMPLES)]
                for name, times in CONTESTANTS.items()
            }
            us = {name: sorted(samples)[SAMPLES // 2] for name, samples in raw.items()}
            rows.append({"shape": shape, "tokens": tokens, "routing": "uniform", "floor_us": 0.8 * ours, "us": us})
            rows[-1] |= {"raw": raw, "failed": {}}
    return {
        "schema": 1, "kind": "bench_moe", "gpu": "NVIDIA H200", "torch": "2.11.0", "triton": "3.6.0", "commit": COMMIT,
        "copy_bandwidth": 4.25e12, "matmul_rate": 7.8e14, "failed": {}, "rows": rows,
        "errors": {shape: dict.fromkeys(CONTESTANTS, 2e-3) for shape in shapes},
        "host_us": {shape: dict.fromkeys(CONTESTANTS, 46.6) for shape in shapes},
    }  # fmt: skip


def scaled(receipt, factor, part=slice(None)):
    """The receipt with only some samples of each row, all times multiplied."""
    new = copy.deepcopy(receipt)
    for row in new["rows"]:
        row["raw"] = {n: [t * factor for t in times[part]] for n, times in row["raw"].items()}
        row["us"] = {n: sorted(times)[len(times) // 2] for n, times in row["raw"].items()}
    return new


def test_two_halves_of_a_run_agree_and_a_twentieth_more_does_not(receipt):
    first, second = scaled(receipt, 1, slice(0, 7)), scaled(receipt, 1, slice(7, SAMPLES))
    timed = len(receipt["rows"]) * len(CONTESTANTS)
    assert [ok for *_, ok in compare.repeats(first, second)] == [True] * timed
    slower = compare.repeats(first, scaled(receipt, 1.05, slice(7, SAMPLES)))
    assert [ok for *_, ok in slower] == [False] * timed


def test_one_sample_apart_is_none_of_the_range(receipt):
    """The first call after a pause, say; a tenth at either end does not count."""
    second = copy.deepcopy(receipt)
    for row in second["rows"]:
        row["raw"] = {name: [3 * times[0], *times[1:]] for name, times in row["raw"].items()}
    assert all(ok for *_, ok in compare.repeats(receipt, second))


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
    with pytest.raises(ValueError, match=rf"not the same commit: {COMMIT} and deadbeef"):
        compare.repeats(receipt, {**receipt, "commit": "deadbeef"})


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
    text, rows = races.tables(), len(first["rows"])
    apart = f"TP1 uniform T={first['rows'][4]['tokens']}"
    header = next(line for line in text.splitlines() if line.startswith("| layer | tokens"))
    assert "Marlin µs | FlashInfer µs" in header
    assert "humming" not in header
    row = next(line for line in text.splitlines() if line.startswith("| TP1 | 4 |"))
    assert "| 1.02x | missed: 1.35x the best |" in row
    assert "| 1000.0 |" in row
    assert "* humming, TP1: ModuleNotFoundError: No module named 'humming'" in text
    assert f"ours bf16: {rows - 1} of {rows} rows agree; not: {apart} (+50.0%)" in text
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
    shapes["rows"][0]["shape"], shapes["rows"][1]["shape"] = "v4.1-dspark-tp8", "reap-160-tp1"
    (tmp_path / "h200-shapes.json").write_text(json.dumps(shapes))
    text = races.tables()
    assert "## Other shapes, uniform routing" in text
    assert "| V4.1-Flash TP4 | 4096 |" in text
    assert "| V4.1 DSpark TP8 | 1 |" in text
    assert "| 160 experts TP1 | 2 |" in text


def test_routings_are_named_and_the_newest_receipt_of_a_row_counts(receipt, tmp_path, monkeypatch):
    monkeypatch.setattr(races, "RECEIPTS", tmp_path)
    slow = copy.deepcopy(receipt)
    for row in slow["rows"]:
        row["us"]["triton_kernels"] = row["us"]["ours bf16"] * 0.9
    (tmp_path / "h200-table.json").write_text(json.dumps(slow))
    assert len(races.missed().splitlines()) == 2 + len(slow["rows"])
    (tmp_path / "h200-shapes.json").write_text(json.dumps(receipt))
    assert len(races.missed().splitlines()) == 2
    other = copy.deepcopy(slow)
    for i, row in enumerate(other["rows"]):
        row |= {"format": "nvfp4", "routing": ("skewed", "speculative")[i % 2], "shape": "reap-144-tp1"}
    (tmp_path / "h200-nvfp4-routings.json").write_text(json.dumps(other))
    assert "| 144 experts TP1, skewed, NVFP4 | 1 |" in races.missed()
    text = races.tables()
    assert "## NVFP4, other routings" in text
    assert "| 144 experts TP1, speculative | 2 |" in text


def test_the_summary_is_v4_flashs_whatever_else_was_raced(receipt, tmp_path, monkeypatch):
    monkeypatch.setattr(races, "RECEIPTS", tmp_path)
    more = copy.deepcopy(receipt)
    more["rows"] += [{**row, "shape": "v4-pro-tp1", "format": "nvfp4"} for row in receipt["rows"][:6]]
    (tmp_path / "h200-nvfp4.json").write_text(json.dumps(more))
    assert "| tokens | TP1 | TP2 | TP4 |\n" in races.summary_nvfp4()


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


def test_the_figures_show_what_the_receipt_holds(tmp_path):
    """The committed ones, by the data that they carry; a figure of an older run is named."""
    figures, file = ROOT / "benchmarks" / "figures", ROOT / "benchmarks" / "receipts" / "h200-table.json"
    data = plot.data_of(json.loads(file.read_text()), file.name)
    assert {path.stem: plot.shown(path) for path in figures.glob("*.svg")} == data
    older = copy.deepcopy(json.loads(file.read_text()))
    older["rows"][0]["us"]["ours bf16"] += 1
    (tmp_path / file.name).write_text(json.dumps(older))
    command = [sys.executable, str(ROOT / "benchmarks" / "reports" / "plot.py"), str(tmp_path / file.name)]
    done = subprocess.run([*command, "--out", str(figures), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"{older['rows'][0]['shape']}-{older['rows'][0]['routing']}.svg does not show what" in line


def test_a_figure_says_what_its_axes_are_and_no_label_lies_over_another(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.text import Text

    file = ROOT / "benchmarks" / "receipts" / "h200-table.json"
    for name, data in plot.data_of(json.loads(file.read_text()), file.name).items():
        figure = plot.draw(data)
        figure.savefig(tmp_path / "drawn.png", dpi=100)
        assert [axes.get_xlabel() for axes in figure.axes] == ["Tokens", "Tokens"]
        assert [axes.get_ylabel() for axes in figure.axes] == ["Time of a layer (µs)", "Floor ÷ time"]
        texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
        boxes = [(t.get_text(), t.get_rotation(), t.get_window_extent()) for t in texts]
        for (one, turned, box), (other, also, its) in itertools.combinations(boxes, 2):
            if not (turned % 90 and also % 90):  # boxes of slanted labels overlap where the labels do not
                assert not box.overlaps(its), (name, one, other)


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
    files = [str(file), str(file)] if script == "compare.py" else [str(file), "--out", "."]
    command = [sys.executable, str(ROOT / "benchmarks" / "reports" / script), *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert str(file) in done.stderr
    assert said in done.stderr
