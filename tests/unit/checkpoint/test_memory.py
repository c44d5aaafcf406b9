"""Weight budgets against sizes that are known."""

import json
import struct

import pytest

from sglang_sm120.checkpoint import memory, survey
from sglang_sm120.checkpoint.memory import GIB, Weights


def write(directory, tensors):
    header, offset = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    (directory / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def test_tensors_are_sorted_into_experts_and_rest(tmp_path):
    write(
        tmp_path,
        {
            "layers.0.ffn.experts.0.w1.weight": 1000,
            "layers.0.ffn.shared_experts.w1.weight": 10,
            "layers.0.attn.wq_a.weight": 20,
            "mtp.0.ffn.experts.0.w1.weight": 500,
            "mtp.0.e_proj.weight": 5,
        },
    )
    weights = memory.weigh(survey.read(tmp_path), layers=1)
    assert weights == Weights(1000, 500, 30, 5)
    assert weights.per_gpu(1, 1, draft=True) == (1535, 1535)
    assert weights.per_gpu(1, 1, draft=False) == (1030, 1030)
    assert weights.per_gpu(2, 1, draft=True) == (768, 785)
    assert weights.per_gpu(2, 2, draft=False) == (258, 265)


def test_groups_of_ranks_hold_copies_of_the_experts_under_moe_data_parallelism():
    """`--tp 8 --ep-size 2 --moe-dp-size 2`: two copies, each of two halves of the experts, cut by two ranks."""
    weights = Weights(experts=8000, draft_experts=80)
    assert weights.per_gpu(8, 1, draft=True) == (1010, 1010)
    assert weights.per_gpu(8, 1, draft=True, ep=2) == (1010, 1010)
    assert weights.per_gpu(8, 1, draft=True, ep=2, moe_dp=2) == (2020, 2020)
    assert weights.per_gpu(4, 1, draft=False, moe_dp=4) == (8000, 8000)
    assert memory.budget(Weights(experts=300 * GIB), 96, 4, 1, draft=False, moe_dp=2).fits is False


def test_no_files_no_budget(tmp_path):
    assert memory.weigh(survey.read(tmp_path), layers=1) is None


# Routed experts of published models: e2m1 codes and one e8m0 byte per 32, three matrices of H x I.
@pytest.mark.parametrize(
    ("experts", "layers", "hidden", "inter", "tp", "gib"),
    [(256, 43, 4096, 2048, 2, 68.5), (384, 61, 7168, 3072, 8, 95.7)],
    ids=["V4-Flash TP2", "V4-Pro TP8"],
)
def test_published_sizes(experts, layers, hidden, inter, tp, gib):
    expert = 3 * hidden * inter * 17 // 32
    found = memory.budget(Weights(experts=expert * experts * layers), 96, tp, 1, draft=False)
    assert found.weights_gib_least == pytest.approx(gib, abs=0.1)
    assert found.fits is True


def test_too_much_does_not_fit():
    assert memory.budget(Weights(experts=100 * GIB), 32, 2, 1, draft=False).fits is False
    assert memory.budget(Weights(experts=100 * GIB), 32, 4, 1, draft=False).fits is True


def test_sglang_keeps_a_part_for_itself():
    found = memory.budget(Weights(experts=90 * GIB), 96, 1, 1, draft=False, static_fraction=0.861)
    assert found.static_gib == 82.66
    assert found.fits is False
    assert memory.budget(Weights(experts=82 * GIB), 96, 1, 1, draft=False, static_fraction=0.861).fits is True


def test_redundant_experts_are_copies_in_the_targets_layers_alone():
    """`--ep-num-redundant-experts 16` of 256: a rank of 8 holds 34 for each 32."""
    weights = Weights(experts=256 * 800, draft_experts=256 * 80)
    assert weights.per_gpu(8, 1, draft=True, ep=8, copies=1 + 16 / 256) == (272 * 100 + 2560,) * 2
    assert memory.budget(Weights(experts=80 * GIB), 96, 1, 1, draft=False, copies=1.25).fits is False
