"""The SM120 machine code of every tile in use, compiled here with the installed Triton and held to its limits."""

from __future__ import annotations

import pytest

from scripts.machine_code import compiled_tile, report


@pytest.fixture(scope="module")
def rows():
    return report.rows_of(None, [120])


def test_the_table_has_both_modes_products_and_all_regimes(rows):
    assert {r["mode"] for r in rows} == {"bf16", "mxfp8"}
    assert {r["kernel"] for r in rows} == {"gate_up", "down"}
    assert {r["tokens"] for r in rows} >= {8, 32, 64}
    assert any(r["wide"] for r in rows)
    assert {r["tile"] for r in rows if r["wide"]} == {"128x32", "128x32, rest"}  # V4.1-Flash at TP4 and TP8
    assert {(r["kernel"], r["tokens"], r["wide"]) for r in rows if r["format"] == "nvfp4"} >= {
        (kernel, tokens, wide)
        for kernel in ("gate_up", "down")
        for tokens, wide in ((8, False), (16, False), (32, False), (32, True))
    }


def test_no_limit_is_broken(rows):
    assert rows
    assert [(r["format"], r["kernel"], r["mode"], r["tile"], r["broken"]) for r in rows if r["broken"]] == []
    assert compiled_tile.orders_of_addition(rows) == []


BREAK = {
    "spills": 8, "shared": 101377, "ctas_per_sm": 1, "weight_copies_16b": False, "sync_loads": 1, "whole_words": False,
    "own_lanes": False, "instructions_per_weight": 4.3, "scaled_mma": False, "mma": {"HMMA": 4},
}  # fmt: skip


@pytest.mark.parametrize("what", BREAK)
def test_each_limit_can_be_broken(what):
    good = {
        "format": "mxfp4", "tokens": 8, "mode": "mxfp8", "spills": 0, "shared": 20000, "ctas_per_sm": 4,
        "weight_copies_16b": True, "sync_loads": 0, "whole_words": True, "own_lanes": True,
        "instructions_per_weight": 1.8, "scaled_mma": True,
        "mma": {"QMMA": 16},
    }  # fmt: skip
    assert compiled_tile.broken_limits(good) == []
    assert len(compiled_tile.broken_limits(good | {what: BREAK[what]})) == 1


def test_two_orders_of_addition_are_seen():
    """Tiles of one format must add alike, or a tile table would change bits."""
    row = {"triton": "3.8.0", "arch": "sm_120a", "format": "nvfp4", "mode": "bf16", "wide": False, "decode_widths": [4]}
    assert compiled_tile.orders_of_addition([row, row, row | {"arch": "sm_121a", "decode_widths": [8]}]) == []
    assert compiled_tile.orders_of_addition([row, row | {"wide": True, "decode_widths": [8]}]) == []
    assert len(compiled_tile.orders_of_addition([row, row | {"decode_widths": [8]}])) == 1


def test_torn_words_are_seen():
    asm = 'tt.elementwise_inline_asm "x" {packed_element = 4 : i32, pure = true} %w : tensor<64x32xi8, '
    assert compiled_tile.words_are_whole(asm + "#ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 4}>> -> ")
    assert compiled_tile.words_are_whole(asm + "#ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>> -> ")
    assert compiled_tile.decode_widths(asm + "#ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 8}>> -> ") == [8]
    assert not compiled_tile.words_are_whole(asm + "#ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 2}>> -> ")
    blocked = "#blocked = #ttg.blocked<{sizePerThread = [1, %d], warpsPerCTA = [4, 1], order = [1, 0]}>\n"
    assert compiled_tile.words_are_whole(blocked % 16 + asm + "#blocked> -> ")
    assert not compiled_tile.words_are_whole(blocked % 2 + asm + "#blocked> -> ")
    assert not compiled_tile.words_are_whole("no decode at all")


def test_lanes_out_of_order_are_seen():
    asm = '"match.any.sync.b32 $0, $1, 0xffffffff;" {packed_element = 1 : i32, pure = false} %ids : tensor<32xi32, #b>'
    asm += " -> tensor<32xi32, #b>"
    layout = "#b = #ttg.blocked<{sizePerThread = [%d], threadsPerWarp = [32], warpsPerCTA = [1], order = [0]}>\n"
    assert compiled_tile.lanes_hold_their_elements(layout % 1 + asm)
    assert not compiled_tile.lanes_hold_their_elements(layout % 2 + asm)
    assert not compiled_tile.lanes_hold_their_elements("#b = #ttg.slice<{dim = 1, parent = #c}>\n" + asm)
    assert not compiled_tile.lanes_hold_their_elements(asm.replace("#b", "#ttg.slice<{dim = 1, parent = #c}>"))
    assert not compiled_tile.lanes_hold_their_elements(layout % 1 + asm.replace("32xi32", "64xi32"))
