"""The NVFP4 target's experts through SGLang's own loader, dispatcher and layer, on ranks of every kind; damaged files.

`input_scale` is in the checkpoint; nothing reads it. Gate and up multipliers are ten times apart.
"""

import json
import shutil
import sys
from dataclasses import replace

import pytest
from helpers import SCRIPTS, run

from scripts.checkpoints import tiny

pytestmark = pytest.mark.sglang

# Two roundings to bf16 (the intermediate and a route's result) of 2^-9/sqrt(3) each at most, and the one of the sum.
BOUND = 3e-3
LAYER = "model.layers.0.mlp.experts"
BLOCK = "layers.0.ffn.experts"


def target_layer(checkpoint, *arguments):
    script = SCRIPTS / "layers" / "draft_layer.py"
    return run(sys.executable, script, checkpoint, "--role", "target", *arguments, timeout=400)


def edited(checkpoint, to, edit):
    """A copy of the checkpoint with the first block's experts edited: tensor name -> tensor."""
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(checkpoint, to)
    index_file = copy / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    shards = {shard for name, shard in index["weight_map"].items() if name.startswith(BLOCK)}
    for shard in shards:
        tensors = load_file(copy / shard)
        edit(tensors)
        save_file(tensors, copy / shard)
        index["weight_map"] = {n: s for n, s in index["weight_map"].items() if s != shard or n in tensors}
    index_file.write_text(json.dumps(index))
    return copy


def ten_times_apart(tensors):
    for name, tensor in tensors.items():
        if name.startswith(BLOCK) and name.endswith("w3.weight_scale_2"):
            tensor.mul_(10)


@pytest.fixture(scope="module")
def apart(checkpoints, tmp_path_factory):
    return edited(checkpoints["hybrid"], tmp_path_factory.mktemp("apart") / "copy", ten_times_apart)


@pytest.mark.parametrize(
    ("arguments", "experts", "width"),
    [
        (("--tp", "1"), 8, 256),
        (("--tp", "2", "--rank", "1", "--update"), 8, 128),
        (("--tp", "2", "--ep", "2", "--rank", "1"), 4, 256),
        (("--tp", "4", "--ep", "2", "--rank", "2", "--tokens", "1"), 4, 128),
    ],
    ids=["TP1", "TP2 with an update", "EP2", "TP4 EP2"],
)
def test_rank(apart, arguments, experts, width):
    done = target_layer(apart, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    assert answer["method"] == "Sm120Nvfp4MoEMethod"
    assert answer["runner"] == "sm120_triton"
    assert answer["parameters"] == {
        "w13_weight": ["torch.uint8", experts, 2 * width, 256],
        "w13_weight_scale": ["torch.float8_e4m3fn", experts, 2 * width, 32],
        "w13_weight_scale_2": ["torch.float32", experts, 2],
        "w13_input_scale": ["torch.float32", 8, 2],
        "w2_weight": ["torch.uint8", experts, 512, width // 2],
        "w2_weight_scale": ["torch.float8_e4m3fn", experts, 512, width // 16],
        "w2_weight_scale_2": ["torch.float32", experts],
        "w2_input_scale": ["torch.float32", 8],
    }
    assert answer["error"] <= BOUND
    assert answer["bytes"] == answer["checkpoint_bytes"]  # no swizzled copy
    assert answer["in_place"] is True
    if "--update" in arguments:
        assert answer["updated_error"] <= BOUND
    assert f"sm120_triton runs the target's experts ({LAYER}, bf16 activations)" in done.stderr


def test_a_cast_of_mxfp4_runs_as_mxfp4(tmp_path):
    checkpoint = tiny.write(tmp_path / "cast", replace(tiny.SHAPE, cast=True))
    done = target_layer(checkpoint, "--update")
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    assert answer["method"] == "Sm120Nvfp4MoEMethod"
    assert max(answer["error"], answer["updated_error"]) <= BOUND
    assert f"{LAYER}: NVFP4 that is a lossless cast of MXFP4; sm120_triton runs it as MXFP4" in done.stderr


def test_a_checkpoint_without_input_scales_loads(checkpoints, tmp_path):
    def forget(tensors):
        for name in [n for n in tensors if n.endswith("input_scale")]:
            del tensors[name]

    done = target_layer(edited(checkpoints["hybrid"], tmp_path / "copy", forget))
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["error"] <= BOUND


def test_scales_stored_as_bytes_load_bit_for_bit(checkpoints, tmp_path):
    import torch

    def as_bytes(tensors):
        for name in [n for n in tensors if n.startswith(BLOCK) and n.endswith("weight_scale")]:
            tensors[name] = tensors[name].view(torch.uint8)

    done = target_layer(edited(checkpoints["hybrid"], tmp_path / "copy", as_bytes))
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["error"] <= BOUND


def zeroed(tensors):
    tensors[f"{BLOCK}.6.w1.weight_scale_2"].zero_()


def poisoned(tensors):
    import torch

    tensors[f"{BLOCK}.6.w2.weight_scale"].view(torch.uint8)[3, 7] = 0xFF


def without(name):
    return lambda tensors: tensors.pop(name, None)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (without(f"{BLOCK}.5.w2.weight_scale_2"), "expert 5 of layers.0 lacks w2.weight_scale_2, which most of its"),
        (without(f"{BLOCK}.5.w3.weight_scale"), "expert 5 of layers.0 lacks w3.weight_scale, which most of its"),
        (zeroed, f"{LAYER}: w13_weight_scale_2 of expert 6 is 0.0, expected a finite multiplier"),
        (poisoned, f"{LAYER}: w2_weight_scale of expert 6 holds NaN (byte 0xff)"),
    ],
    ids=["no multiplier", "no scale", "multiplier 0", "NaN"],
)
def test_damage_is_named(checkpoints, tmp_path, edit, says):
    done = target_layer(edited(checkpoints["hybrid"], tmp_path / "copy", edit), "--tp", "2")
    assert done.returncode != 0
    assert says in done.stderr


def test_a_transcoded_draft_is_refused_before_weights_load(checkpoints, tmp_path):
    """NVFP4 in `mtp.0`, which SGLang would read as MXFP4."""

    def transcode(tensors):
        for name in [n for n in tensors if n.startswith(BLOCK)]:
            tensors[name.replace("layers.0", "mtp.0")] = tensors[name].clone()

    copy = edited(checkpoints["hybrid"], tmp_path / "copy", transcode)
    index_file = copy / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    shard = index["weight_map"][f"{BLOCK}.0.w1.weight"]
    for name in [n for n in index["weight_map"] if n.startswith(BLOCK)]:
        index["weight_map"][name.replace("layers.0", "mtp.0")] = shard
    for name in [n for n in index["weight_map"] if n.startswith("mtp.0.ffn.experts") and n.endswith(".scale")]:
        del index["weight_map"][name]
    index_file.write_text(json.dumps(index))
    done = target_layer(copy)
    assert done.returncode != 0
    assert "the draft's experts of mtp.0 are NVFP4 (U8), and SGLang would read them as MXFP4 or FP8" in done.stderr
    assert "Prepared" not in done.stderr
