"""Reading config.json and safetensors headers, good and damaged ones."""

import json
import os
import re
import struct

import pytest

from sglang_sm120.checkpoint import inspection
from sglang_sm120.checkpoint.inspection import CheckpointError, inspect

QUANTIZATION = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = {"quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "group_size": 16}


def expert(block, weight, **scales):
    names = {}
    for projection in ("w1", "w2", "w3"):
        names[f"{block}.ffn.experts.0.{projection}.weight"] = weight
        names |= {f"{block}.ffn.experts.0.{projection}.{part}": dtype for part, dtype in scales.items()}
    return names


MXFP4_TARGET = expert("layers.0", "I8", scale="F8_E8M0")
NVFP4_TARGET = expert("layers.0", "U8", weight_scale="F8_E4M3", weight_scale_2="F32", input_scale="F32")
MXFP4_DRAFT = expert("mtp.0", "I8", scale="F8_E8M0")
SECOND_MXFP4 = expert("layers.1", "I8", scale="F8_E8M0")


def write(directory, tensors, quantization=None, index=True, **config):
    entries = {name: {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]} for name, dtype in tensors.items()}
    text = json.dumps(entries).encode()
    (directory / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    if index:
        weight_map = dict.fromkeys(tensors, "a.safetensors")
        (directory / inspection.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    facts = {
        "model_type": "deepseek_v4",
        "hidden_size": 4096,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 6,
        "swiglu_limit": 10.0,
    }
    facts["quantization_config"] = QUANTIZATION | (quantization or {})
    (directory / "config.json").write_text(json.dumps(facts | config))
    return directory


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize(
    ("tensors", "quantization", "kind"),
    [
        (MXFP4_TARGET | MXFP4_DRAFT, {}, "mxfp4"),
        (NVFP4_TARGET | MXFP4_DRAFT, NVFP4, "hybrid-nvfp4"),
        (expert("layers.0", "F8_E4M3", scale="F8_E8M0"), {}, "fp8"),
    ],
)
def test_kinds(tmp_path, tensors, quantization, kind, index):
    found = inspect(write(tmp_path, tensors, quantization, index))
    assert found == inspection.Checkpoint(kind, 4096, 2048, 256, 6, 10.0)
    assert found.problems == ()


def test_text_config_holds_the_sizes(tmp_path):
    text = {"hidden_size": 5120, "moe_intermediate_size": 2304, "n_routed_experts": 384, "num_experts_per_tok": 6}
    found = inspect(write(tmp_path, MXFP4_TARGET, model_type="deepseek_v41", text_config=text))
    assert (found.hidden_size, found.moe_intermediate_size, found.experts) == (5120, 2304, 384)


def test_another_model_is_other(tmp_path):
    assert inspect(write(tmp_path, {}, model_type="llama")).kind == "other"


@pytest.mark.parametrize(
    ("tensors", "quantization", "says"),
    [
        (NVFP4_TARGET, {}, r"quantization_config\.moe_quant_algo does not say so.*NVFP4"),
        (NVFP4_TARGET, NVFP4 | {"group_size": None}, r"quantization_config\.group_size is missing"),
        (MXFP4_TARGET, NVFP4, "says NVFP4, but the routed experts have dtype I8; expected U8"),
        (expert("layers.0", "BF16"), {}, "dtype BF16; expected I8"),
        (expert("layers.0", "I8"), {}, r"routed experts of layers\.0 have w1\.weight but no scale"),
        (NVFP4_TARGET, NVFP4 | {"group_size": 32}, r"group_size is 32; NVFP4 experts need it, and have 16"),
        (
            NVFP4_TARGET | SECOND_MXFP4,
            NVFP4,
            r"experts of layers\.1 are MXFP4 \(I8\), and SGLang would read them as NVFP4",
        ),
    ],
)
def test_contradictions_name_what_to_change(tmp_path, tensors, quantization, says):
    problems = "; ".join(inspect(write(tmp_path, tensors, quantization)).problems)
    assert re.search(says, problems), problems


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"num_experts_per_tok": 257}, "num_experts_per_tok is 257; expected 1 to 256, as n_routed_experts says"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok is 0; expected a positive whole number"),
        ({"n_routed_experts": -256}, "n_routed_experts is -256; expected a positive whole number"),
        ({"hidden_size": 4096.0}, "hidden_size is 4096.0; expected a positive whole number"),
        ({"moe_intermediate_size": "2048"}, 'moe_intermediate_size is "2048"; expected a positive whole number'),
        ({"num_experts_per_tok": True}, "num_experts_per_tok is true; expected a positive whole number"),
        ({"dspark_n_routed_experts": 4}, "num_experts_per_tok is 6; expected 1 to 4, as dspark_n_routed_experts"),
        (
            {"dspark_num_experts_per_tok": 300},
            "dspark_num_experts_per_tok is 300; expected 1 to 256, as n_routed_experts says",
        ),
        ({"dspark_n_routed_experts": 12, "dspark_num_experts_per_tok": -1}, "dspark_num_experts_per_tok is -1; expect"),
    ],
    ids=str,
)
def test_sizes_that_no_layer_can_have(tmp_path, sizes, says):
    (problem,) = inspect(write(tmp_path, MXFP4_TARGET, **sizes)).problems
    assert problem.startswith(f"config.json: {says}")


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_experts_per_tok": 256},
        {"num_experts_per_tok": 1, "n_routed_experts": 1},
        {"num_experts_per_tok": None},
        {"dspark_n_routed_experts": 0, "dspark_num_experts_per_tok": None},
        {"dspark_n_routed_experts": 12, "dspark_num_experts_per_tok": 12},
    ],
    ids=str,
)
def test_sizes_at_their_limits_or_left_to_sglang(tmp_path, sizes):
    assert inspect(write(tmp_path, MXFP4_TARGET, **sizes)).problems == ()


def test_one_tensor_alone_proves_no_fault(tmp_path):
    """A directory for dummy weights holds the header of one expert tensor."""
    assert inspect(write(tmp_path, {"layers.0.ffn.experts.0.w1.weight": "I8"})).problems == ()


def damage_config(directory):
    (directory / "config.json").write_text((directory / "config.json").read_text()[:40])


def damage_header(directory):
    file = directory / "a.safetensors"
    file.write_bytes(file.read_bytes()[:60])


def shorten_file(directory):
    (directory / "a.safetensors").write_bytes(b"\0\0")


def endless_header(directory):
    (directory / "a.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")


def no_json_header(directory):
    (directory / "a.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]")


def deep_header(directory):
    text = b"[" * 100_000
    (directory / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def null_entry(directory):
    text = b'{"layers.0.ffn.experts.0.w1.weight": null}'
    (directory / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def pipe_as_shard(directory):
    (directory / "a.safetensors").unlink()
    os.mkfifo(directory / "a.safetensors")


def quantization_list(directory):
    config = json.loads((directory / "config.json").read_text()) | {"quantization_config": [1]}
    (directory / "config.json").write_text(json.dumps(config))


def number_as_shard(directory):
    (directory / inspection.INDEX).write_text('{"weight_map": {"layers.0.ffn.experts.0.w1.weight": 5}}')


def damage_index(directory):
    (directory / inspection.INDEX).write_text('{"weight_map": ')


def lose_shard(directory):
    (directory / "a.safetensors").unlink()


def lose_config(directory):
    (directory / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (damage_config, "config.json"),
        (lose_config, "config.json"),
        (damage_header, "a.safetensors"),
        (shorten_file, "a.safetensors"),
        (endless_header, "a.safetensors"),
        (no_json_header, "a.safetensors"),
        (lose_shard, "a.safetensors"),
        (damage_index, inspection.INDEX),
        (number_as_shard, inspection.INDEX),
        (deep_header, "a.safetensors"),
        (null_entry, "a.safetensors"),
        (pipe_as_shard, "a.safetensors"),
        (quantization_list, "quantization_config"),
    ],
)
def test_damage_names_the_file(tmp_path, damage, file):
    damage(write(tmp_path, MXFP4_TARGET))
    with pytest.raises(CheckpointError, match=file):
        inspect(tmp_path)


def test_a_model_that_is_a_file(tmp_path):
    (tmp_path / "model").write_text("")
    with pytest.raises(CheckpointError, match="is a file; --model needs a checkpoint directory"):
        inspect(tmp_path / "model")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_directory_without_rights(tmp_path):
    write(tmp_path, MXFP4_TARGET)
    (tmp_path / "config.json").chmod(0)
    with pytest.raises(CheckpointError, match=r"config.json cannot be read: Permission denied"):
        inspect(tmp_path)


def test_an_unreadable_file_says_why(tmp_path, monkeypatch):
    write(tmp_path, MXFP4_TARGET)

    def refuse(self, *_args, **_kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        inspect(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_is_named_as_one(tmp_path, encoding):
    """SGLang does not read such a file, and nothing is cut short."""
    text = (write(tmp_path, MXFP4_TARGET) / "config.json").read_text()
    (tmp_path / "config.json").write_text(text, encoding=encoding)
    with pytest.raises(CheckpointError, match="begins with a byte order mark, so SGLang does not read it; save it as"):
        inspect(tmp_path)


@pytest.mark.parametrize("limit", ["x", 0, -1, float("nan"), float("inf"), True, []])
def test_a_clamp_that_is_none(tmp_path, limit):
    (problem,) = inspect(write(tmp_path, MXFP4_TARGET, swiglu_limit=limit)).problems
    assert problem.startswith("config.json: swiglu_limit is ")


@pytest.mark.parametrize("offsets", [[0], None, [1, 0], [-1, 0], [0, 1.0], [0, 2**63], "ab", [None, 0]])
def test_offsets_that_no_file_has(tmp_path, offsets):
    header = json.dumps({"a": {"dtype": "U8", "shape": [0], "data_offsets": offsets}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CheckpointError, match="is cut short or damaged; download it again"):
        inspection.tensor_headers(tmp_path / "a.safetensors")
