"""docs/DECODE.md: the receipt's bytes are those of the checkpoint's tensors as SGLang keeps them."""

from scripts.checkpoints.tensors import Block
from scripts.layers import decode_step
from scripts.pages import decode_step as page
from sglang_sm120.checkpoint import format


def test_the_receipt_is_of_this_arithmetic():
    found = page.receipt()
    for tp, steps in found["steps"].items():
        now = [step["bytes"] for step in decode_step.step(int(tp))]
        assert [list(step["bytes"].values()) for step in steps] == [list(each.values()) for each in now]


def test_every_matrix_of_a_block_belongs_to_a_family():
    """What is left out is small: norms, sinks, positions, biases and tables that a step reads a row of."""
    flash = decode_step.FLASH
    for ratio in set(flash.ratios):
        tensors = Block(flash, "", ratio, False, flash.kind).tensors
        left = [t for t in tensors if decode_step.family(t.name) is None]
        assert sum(format.nbytes(t.dtype, t.shape) for t in left) < 2**18, [t.name for t in left]


def test_what_sglang_dequantises_takes_twice_the_checkpoints_bytes():
    output = next(s for s in page.receipt()["steps"]["1"] if "wo_a" in s["family"])
    flash = decode_step.FLASH
    weights = flash.layers * flash.o_groups * flash.o_rank * flash.heads * flash.head_dim // flash.o_groups
    assert output["bytes"]["1"] == 2 * weights
    assert page.receipt()["resolved"]["SGLANG_OPT_FP8_WO_A_GEMM"] == "False"
