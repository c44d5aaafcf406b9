"""The draft's experts through SGLang's own loader, dispatcher and layer, on ranks of every kind; and damaged files."""

import json
import shutil
import sys

import pytest
from helpers import SCRIPTS, run

pytestmark = pytest.mark.sglang

# Two roundings to bf16 (the intermediate and a route's result) of 2^-9/sqrt(3) each at most, and the one of the sum.
BOUND = 3e-3


def draft_layer(checkpoint, *arguments):
    return run(sys.executable, SCRIPTS / "layers" / "draft_layer.py", checkpoint, *arguments, timeout=400)


@pytest.mark.parametrize(
    ("arguments", "experts", "width"),
    [
        (("--tp", "2", "--rank", "1", "--update"), 8, 128),
        (("--tp", "2", "--ep", "2", "--rank", "1"), 4, 256),
        (("--tp", "4", "--ep", "2", "--rank", "2", "--tokens", "1"), 4, 128),
    ],
    ids=["TP2 with an update", "EP2", "TP4 EP2"],
)
def test_rank(checkpoints, arguments, experts, width):
    done = draft_layer(checkpoints["hybrid"], *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    assert answer["method"] == "Sm120Mxfp4MoEMethod"
    assert answer["parameters"]["w13_weight"] == ["torch.int8", experts, 2 * width, 256]
    assert answer["parameters"]["w2_weight_scale_inv"] == ["torch.float8_e8m0fnu", experts, 512, width // 32]
    assert answer["error"] <= BOUND
    assert answer["bytes"] == answer["checkpoint_bytes"]
    assert answer["in_place"] is True
    if "--update" in arguments:
        assert answer["updated_error"] <= BOUND
    assert "sm120_triton runs the draft's experts (model.decoder.mlp.experts, bf16 activations)" in done.stderr


def damaged(checkpoints, tmp_path, edit):
    """A copy of the checkpoint with the draft's tensors edited."""
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(checkpoints["hybrid"], tmp_path / "copy")
    index_file = copy / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    shard = index["weight_map"]["mtp.0.ffn.gate.weight"]
    tensors = load_file(copy / shard)
    edit(tensors)
    save_file(tensors, copy / shard)
    index["weight_map"] = {n: s for n, s in index["weight_map"].items() if s != shard or n in tensors}
    index_file.write_text(json.dumps(index))
    return copy


def test_a_missing_tensor_is_named(checkpoints, tmp_path):
    copy = damaged(checkpoints, tmp_path, lambda tensors: tensors.pop("mtp.0.ffn.experts.5.w2.scale"))
    done = draft_layer(copy, "--tp", "2")
    assert done.returncode != 0
    assert "expert 5 of mtp.0 lacks w2.scale, which most of its experts have" in done.stderr
    assert "Prepared" not in done.stderr


def test_a_nan_scale_is_named(checkpoints, tmp_path):
    import torch

    def poison(tensors):
        tensors["mtp.0.ffn.experts.6.w1.scale"].view(torch.uint8)[3, 7] = 0xFF

    done = draft_layer(damaged(checkpoints, tmp_path, poison), "--tp", "2")
    assert done.returncode != 0
    assert "w13_weight_scale_inv of local expert 6" in done.stderr
