"""What the judges of others are asked, and when an answer counts; their own code runs in `benchmarks/judges/run.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.judges import run, tables, verdicts, weights, wrong
from benchmarks.judges.decoders import Judge
from benchmarks.judges.stored import Stored, read, scales
from scripts.pages import judges

FORMATS = ("mxfp4", "nvfp4")


@pytest.mark.parametrize(
    ("figure", "wrong_figures", "good"),
    [
        (0.0, {"a": 0.5, "b": 0.11}, True), (0.1, {"a": 0.5}, True), (0.11, {"a": 0.5}, False),
        (float("nan"), {"a": 0.5}, False), (0.0, {"a": 0.5, "b": 0.19}, False), (0.0, {"a": float("nan")}, False),
        (0.0, {}, False),
    ],
)  # fmt: skip
def test_a_judge_counts_only_if_wrong_references_are_told_apart(figure, wrong_figures, good):
    limit = 0.0 if wrong_figures.get("b") == 0.11 else 0.1
    assert verdicts.row("x", "mxfp4", "decoder", figure, limit, wrong_figures)["good"] is good


def test_signs_of_zero_and_nan():
    a, b = torch.tensor([0.0, float("nan"), 1.0, 2.0]), torch.tensor([-0.0, float("nan"), 1.0, -2.0])
    assert verdicts.share_unequal(a, b) == 0.25
    assert verdicts.share_unequal(a, b, signed=True) == 0.5


def plain(w: Stored) -> torch.Tensor:
    """A decoder that is right, written otherwise than the reference; one global scale or none."""
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nibbles = torch.stack([w.codes & 15, w.codes >> 4], -1).flatten(1).long()
    values = torch.where(nibbles > 7, -table[nibbles % 8], table[nibbles % 8])
    if w.factors is None:
        return torch.ldexp(values, w.scale.repeat_interleave(32, 1).int() - 127)
    return values * w.scale.view(torch.float8_e4m3fn).float().repeat_interleave(16, 1) * w.factors


@pytest.mark.parametrize("kind", FORMATS)
def test_a_right_decoder_agrees_and_each_wrong_one_is_named(kind):
    verdict = weights.decoder(Judge("right", kind, plain))
    assert verdict["good"]
    assert verdict["figure"] == 0
    names = {"halves swapped", "one binade"} | ({"one global for both halves"} if kind == "nvfp4" else set())
    assert set(verdict["wrong"]) == names
    for name, make in wrong.of_weights(weights.random_stored(kind)).items():
        if name != "one global for both halves":  # a half alone has one
            assert not weights.decoder(Judge(name, kind, lambda w, make=make: plain(make(w))))["good"]


def test_one_global_for_both_halves_is_not_gates_half():
    w = weights.random_stored("nvfp4")
    other = wrong.first_global_for_both(w)
    half = len(w.codes) // 2
    assert torch.equal(read(w)[:half], read(other)[:half])
    assert torch.equal(read(w)[half:], 4 * read(other)[half:])


def test_scales_are_what_codes_of_one_are_worth():
    w = weights.random_stored("mxfp4")
    assert torch.equal(scales(w)[:, ::32], torch.exp2(w.scale.double() - 127))


@pytest.mark.parametrize(("value", "code", "error"), [(5.0, 6, 0.2), (8.0, 7, 0.25), (0.25, 0, 0.25), (9.0, 7, 3 / 9)])
def test_a_quantisers_error_is_part_of_the_value_or_the_scale(value, code, error):
    """6 scales is the largest value: the OCP's rule clips up to 8 to it, and no further."""
    codes = torch.full((2, 16), code | code << 4, dtype=torch.uint8)
    w = Stored(codes, torch.full((2, 1), 127, dtype=torch.uint8))
    assert weights.distance(w, torch.full((2, 32), value), scales(w)) == pytest.approx(error)


def test_the_tables_of_ml_dtypes():
    pytest.importorskip("ml_dtypes")
    found = tables.verdicts()
    assert [row["format"] for row in found] == ["float4_e2m1fn", "float8_e8m0fnu", "float8_e4m3fn"]
    assert all(row["good"] for row in found)


def test_packages_stay_outside_the_checkout(tmp_path):
    command = [sys.executable, run.__file__, "--packages", str(run.ROOT / "judges"), "--out", str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"--packages is {run.ROOT / 'judges'}, in the checkout; expected a directory outside" in done.stderr


def test_packages_are_fetched_once(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(run.subprocess, "run", lambda command, check: calls.append(command))
    run.install(tmp_path)
    assert calls[0][1:5] == ["-m", "pip", "install", "--quiet"]
    assert str(tmp_path) in calls[0]
    for name in ("modelopt", "torchao"):
        (tmp_path / name).mkdir()
    run.install(tmp_path)
    assert len(calls) == 1


def test_the_page_says_who_agrees_and_no_page_hides_who_does_not(tmp_path, monkeypatch):
    made = json.loads(Path(judges.RECEIPT).read_text())
    for name in made["packages"]:
        assert f"{judges.TITLES[name]} {made['packages'][name]}" in judges.sentence()
    made["rows"][-1]["good"] = False
    (tmp_path / "judges.json").write_text(json.dumps(made))
    monkeypatch.setattr(judges, "RECEIPT", tmp_path / "judges.json")
    with pytest.raises(ValueError, match="not good: FlashInfer nvfp4 layer"):
        judges.sentence()
