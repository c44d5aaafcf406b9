"""What bounds prefill: the instructions that count, and a receipt whose figures follow from the tiles."""

import json

import pytest

from scripts.machine_code import bounds
from scripts.pages import bounds as page


@pytest.mark.parametrize(
    ("instruction", "moved"),
    [
        ("LDS.128 R4, [R2+0x10]", 512),
        ("@!P0 LDS.64 R4, [R2]", 256),
        ("LDS R4, [R2]", 128),
        ("LDSM.16.M88.4 R8, [R2]", 512),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R2], desc[UR4][R6.64]", 512),
        ("STS [R2], R3", 128),
        ("LDG.E.128 R4, desc[UR4][R6.64]", 0),
        ("HMMA.16816.F32.BF16 R4, R8, R12, R4", 0),
    ],
)
def test_bytes_in_shared_memory(instruction, moved):
    assert bounds.shared_bytes(instruction) == moved


def test_the_receipts_operations_are_those_of_the_tiles():
    for row in json.loads(page.RECEIPT.read_text(encoding="utf-8"))["rows"]:
        assert row["operations"] == 2 * row["weights"] * row["tokens"]
        for name, card in bounds.CARDS.items():
            cycles = row["operations"] / bounds.rate(card, row["mode"])
            assert row["mma_cycles"][name] == pytest.approx(cycles, abs=0.1)


def test_the_largest_bound_is_named():
    assert page._card(1000, 500, 400) == "MMA 1000: MMA, 2.00x issue"
    assert page._card(300, 600, 500) == "MMA 300: issue, 1.20x shared memory"
