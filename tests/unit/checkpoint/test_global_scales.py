"""Whether a checkpoint's gate and up have the same global scales: read from its files, never assumed."""

import json
import struct
from dataclasses import replace

import pytest

from scripts.checkpoints import tiny
from sglang_sm120.checkpoint import headers_only, inspection
from sglang_sm120.checkpoint.global_scales import are_equal


@pytest.fixture
def model(tmp_path):
    return tiny.write(tmp_path / "model", replace(tiny.SHAPE, experts=2))


def put(model, part, value):
    """Write another float32 in the place of the last expert's scale."""
    name = f"layers.1.ffn.experts.1.{part}.weight_scale_2"
    index = json.loads((model / inspection.INDEX).read_text())
    file = model / index["weight_map"][name]
    entry = inspection.tensor_headers(file)[name]
    with file.open("r+b") as data:
        (length,) = struct.unpack("<Q", data.read(8))
        data.seek(8 + length + entry["data_offsets"][0])
        data.write(struct.pack("<f", value))


def test_equal_ones_are_found(model):
    assert are_equal(model) is True


def test_one_that_differs_is_found(model):
    put(model, "w3", 0.25)
    assert are_equal(model) is False


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf"), -1.0])
def test_values_that_no_checkpoint_has_are_not_known(model, value):
    put(model, "w1", value)
    assert are_equal(model) is None


def test_scales_of_another_type_beside_readable_ones_are_not_known(model):
    """SGLang's loader converts them, and nobody has looked whether they are equal."""
    name = "layers.1.ffn.experts.1.w1.weight_scale_2"
    file = model / json.loads((model / inspection.INDEX).read_text())["weight_map"][name]
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    for part in ("w1", "w3"):
        header[f"layers.1.ffn.experts.1.{part}.weight_scale_2"]["dtype"] = "I32"
    file.write_bytes(data[:8] + json.dumps(header, separators=(",", ":")).encode().ljust(length) + data[8 + length :])
    assert are_equal(model) is None


def test_headers_alone_say_nothing(tmp_path):
    assert are_equal(headers_only.write(tmp_path / "model", "hybrid-nvfp4", "nextn", layers=1)) is None
    assert are_equal(tmp_path) is None
    assert are_equal(headers_only.write(tmp_path / "native", "mxfp4", "nextn", layers=1)) is None


def test_a_damaged_file_is_not_known(model):
    next(model.glob("*.safetensors")).write_bytes(b"damaged")
    assert are_equal(model) is None
