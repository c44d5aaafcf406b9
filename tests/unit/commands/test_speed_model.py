"""The model of SM120's speed: its constants are the report's, and it is never shown as a measurement."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.machine_code import listing
from sglang_sm120.commands.selftest import command as selftest
from sglang_sm120.commands.selftest import speed_model

ROOT = Path(__file__).resolve().parents[3]
FLASH = (256, 4096, 2048, 6)
CARD = "RTX PRO 6000 (Workstation)"


@pytest.mark.parametrize(
    ("gpu", "sms", "card"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188, CARD),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 188, "RTX PRO 6000 (Server)"),
        ("NVIDIA GeForce RTX 5090", 170, "RTX 5090"),
        ("NVIDIA GB10", 48, "GB10 (DGX Spark)"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 188, None),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 46, None),  # a slice
        ("NVIDIA GeForce RTX 5090 Laptop GPU", 82, None),
        ("NVIDIA GeForce RTX 5090 D", 170, None),
        ("NVIDIA H200", 132, None),
    ],
)
def test_cards(gpu, sms, card):
    assert speed_model.card_of(gpu, sms) == card


def test_the_instructions_are_those_of_the_report():
    """Within a tenth of the worst in the receipt of scripts/machine_code/report.py."""
    receipt = ROOT / "benchmarks" / "receipts" / "sm120-machine-code.json"
    worst = {}
    for row in json.loads(receipt.read_text(encoding="utf-8"))["rows"]:
        if (row["arch"], listing.weights(row)) == ("sm_120a", "mxfp4"):
            key = row["mode"], row["tokens"]
            worst[key] = max(worst.get(key, 0.0), row["instructions_per_weight"])
    known = {(m, w): n for m, table in speed_model.INSTRUCTIONS.items() for w, n in table.items()}
    assert set(known) == set(worst)
    assert known == pytest.approx(worst, rel=0.1)


def test_terms():
    one = speed_model.times(CARD, FLASH, 1, "bf16")
    assert one.dram_us == pytest.approx(44.8, rel=0.03)  # six experts of 13.369 MB at 1.792 TB/s, hit at random
    assert one.model_us == max(one.dram_us, one.issue_us, one.mma_us) + one.fixed_us
    assert speed_model.times(CARD, FLASH, 1, "bf16", hit=3).dram_us == pytest.approx(one.dram_us / 2, rel=0.03)
    assert speed_model.times(CARD, FLASH, 4096, "bf16").mma_us > speed_model.times(CARD, FLASH, 4096, "bf16").dram_us
    slow = speed_model.times(CARD, FLASH, 1, "bf16", instructions={8: 100.0})
    assert slow.model_us == slow.issue_us + slow.fixed_us


def measured(card):
    """A document of a GPU run with an invented measurement."""
    case = selftest.Case(256, 4096, 1024, 6, 4)
    row = {"activation": "bf16", **vars(case), "experts_hit": 24, "bytes": 1, "floor_us": 90.0, "median_us": 120.0}
    if card:
        row["model"] = selftest.model_of(case, "bf16", 24, card)
    check = {"case": "E256 H4096 I2048 top6 T300", "activation": "mxfp8", "error": 0.05, "bound": 0.08}
    return {
        "device": {"type": "cuda", "name": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"},
        "versions": {"sglang-sm120": "0.1.0", "torch": "2.14.1"},
        "correctness": [check | {"ok": True, "repeats_bits": True}],
        "copy_bytes_per_s": 1.6e12,
        "model": {"card": card, "measured": False, "label": speed_model.LABEL} if card else None,
        "timing": [row],
        "errors": [],
    }


def test_selftest_prints_the_measured_beside_the_floor_and_the_model():
    text = selftest.render(measured(CARD))
    assert f"model: {CARD}, a model, not a measurement." in text
    (head,) = (line for line in text.splitlines() if "floor" in line and "measured" in line)
    (row,) = (line for line in text.splitlines() if line.split()[:3] == ["1024", "4", "bf16"])
    assert head.split()[3:6] == ["floor", "model", "measured"]
    floor, model, us, share = (float(cell) for cell in row.split()[3:])
    assert (floor, us, share) == (90.0, 120.0, 0.75)
    want = speed_model.times(CARD, (256, 4096, 1024, 6), 4, "bf16", 24).model_us
    assert model == pytest.approx(want, abs=0.06)


def test_selftest_has_no_model_column_for_other_cards():
    text = selftest.render(measured(None))
    assert "No model of this card" in text
    (row,) = (line for line in text.splitlines() if line.split()[:3] == ["1024", "4", "bf16"])
    assert [float(cell) for cell in row.split()[3:]] == [90.0, 120.0, 0.75]


def test_selftests_tables_fit_60_columns():
    for card in (CARD, None):
        assert max(len(line) for line in selftest.render(measured(card)).splitlines() if line.startswith("  ")) <= 60


def test_the_front_prints_the_models_rows_as_a_model():
    script = ROOT / "benchmarks" / "kernels" / "model_sm120.py"
    done = subprocess.run([sys.executable, script, "--json"], capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert (document["kind"], document["measured"]) == ("model", False)
    (row,) = (
        r for r in document["rows"]
        if (r["card"], r["shape"], r["tp"], r["tokens"], r["mode"]) == (CARD, "V4-Flash", 1, 4, "bf16")
    )  # fmt: skip
    assert row["model_us"] == pytest.approx(speed_model.times(CARD, FLASH, 4, "bf16").model_us)
    plain = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert plain.stdout.startswith("A MODEL, NOT A MEASUREMENT")
