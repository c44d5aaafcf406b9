"""The kernels of a launch that are not MoE, from flags and variables as SGLang leaves them."""

import json
import struct
import sys
from types import SimpleNamespace

import pytest

from sglang_sm120.checkpoint import survey
from sglang_sm120.checkpoint.headers import CheckpointError
from sglang_sm120.commands.plan import other_kernels
from sglang_sm120.upstream import contracts

FLAGS = {
    "attention_backend": "dsv4",
    "speculative_algorithm": "DSPARK",
    "speculative_dspark_block_size": 4,
    "speculative_num_draft_tokens": 5,
    "tp_size": 2,
    "nnodes": 1,
    "dp_size": 1,
}
MODULE = "flashinfer.mla._sparse_mla_sm120"
OLD = frozenset({(64, 128), (64, 512), (64, 1024)})
NEW = OLD | {(64, 192)}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    for name in ("SGLANG_RAGGED_VERIFY_MODE", "SGLANG_SM120_FLASHMLA_BACKEND", "NCCL_P2P_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(_DECODE_DSV4_DISPATCH=NEW))
    monkeypatch.setattr(contracts, "find", lambda *_: object())


def found(given=None, head="BF16", **flags):
    flags = FLAGS | flags
    text = SimpleNamespace(dspark_block_size=5)
    return {f.name: f for f in other_kernels.findings(flags.get, given or {}, text, head)}


def test_a_launch_that_is_well():
    assert found() == {}
    assert other_kernels.resolved(FLAGS.get).attention == "dsv4"


@pytest.mark.parametrize("field", ["prefill_attention_backend", "decode_attention_backend"])
@pytest.mark.parametrize("backend", ["trtllm_mla", "fa3"])
def test_an_attention_backend_of_another_gpu(field, backend):
    (finding,) = found(**{field: backend}).values()
    assert f"--{field.replace('_', '-')} {backend} is not dsv4" in finding.says
    assert finding.remedy == "leave the flag out"


def test_an_attention_backend_that_sglang_ignores():
    said = found({"--attention-backend": "--attention-backend trtllm_mla"})["attention"].says
    assert said == "--attention-backend trtllm_mla has no effect: SGLang takes dsv4 for DeepSeek-V4"
    assert found({"--attention-backend": "--attention-backend=dsv4"}) == {}


@pytest.mark.parametrize(
    ("kernels", "block", "selected"),
    [(OLD, 4, 192), (OLD, 64, 192), (OLD, 65, 256), (OLD, None, 192), (NEW, 4, None), (NEW, 65, 256)],
)
def test_a_sparse_attention_without_a_kernel_for_the_draft(monkeypatch, kernels, block, selected):
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(_DECODE_DSV4_DISPATCH=kernels))
    finding = found(speculative_dspark_block_size=block).get("sparse-mla")
    assert (finding is None) == (selected is None)
    if finding:
        assert f"for the {selected} tokens" in finding.says
        assert "SGLANG_SM120_FLASHMLA_BACKEND=triton, which slows all attention" in finding.remedy


@pytest.mark.parametrize("flags", [{"speculative_algorithm": "EAGLE"}, {"speculative_algorithm": None}])
def test_only_dspark_looks_at_that_many(monkeypatch, flags):
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(_DECODE_DSV4_DISPATCH=OLD))
    monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", "compact")
    assert found(head="U8", **flags) == {}


def test_another_backend_has_no_such_table(monkeypatch):
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(_DECODE_DSV4_DISPATCH=OLD))
    monkeypatch.setenv("SGLANG_SM120_FLASHMLA_BACKEND", "triton")
    assert found() == {}
    assert other_kernels.resolved(FLAGS.get).sparse_mla == "Triton"
    monkeypatch.setenv("SGLANG_SM120_FLASHMLA_BACKEND", "flashinfer")
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace())
    assert found() == {}


@pytest.mark.parametrize("mode", ["compact", "cap-accept"])
def test_ragged_verification(monkeypatch, mode):
    monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", mode)
    assert f"SGLANG_RAGGED_VERIFY_MODE={mode}" in found()["ragged-verify"].says
    monkeypatch.setenv("SGLANG_RAGGED_VERIFY_MODE", "static")
    assert found() == {}


@pytest.mark.parametrize(("tokens", "unsure"), [(5, False), (6, True), (8, False)])
def test_six_verified_tokens(tokens, unsure):
    assert ("six-tokens" in found(speculative_num_draft_tokens=tokens)) is unsure


@pytest.mark.parametrize(
    ("head", "multiplies", "wrong"),
    [("U8", True, True), ("F8_E4M3", True, True), ("BF16", True, False), (None, True, False), ("U8", False, False)],
)
def test_a_quantized_head(monkeypatch, head, multiplies, wrong):
    monkeypatch.setattr(contracts, "find", lambda *_: None if multiplies else object())
    assert ("quantized-head" in found(head=head)) is wrong


def test_the_fp4_indexer_costs_accuracy():
    assert "95.5 to 93.0" in found(enable_deepseek_v4_fp4_indexer=True)["fp4-indexer"].says


@pytest.mark.parametrize(
    ("flags", "who"),
    [
        ({}, "SGLang's own"),
        ({"disable_custom_all_reduce": True}, "NCCL"),
        ({"tp_size": 4}, "NCCL"),
        ({"tp_size": 1}, None),
        ({"nnodes": 2}, "NCCL"),
        ({"tp_size": 4, "dp_size": 2, "enable_dp_attention": True}, "SGLang's own"),
        ({"tp_size": 4, "dp_size": 2}, "NCCL"),
    ],
)
def test_who_sums(monkeypatch, flags, who):
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    assert other_kernels.resolved((FLAGS | flags).get).all_reduce == who
    assert ("custom-all-reduce" in found(**flags)) is (who == "SGLang's own")


def header(file, tensors):
    text = json.dumps({n: {"dtype": d, "shape": [0], "data_offsets": [0, 0]} for n, d in tensors.items()}).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("name", ["head.weight", "lm_head.weight"])
def test_the_type_of_the_head_is_read(tmp_path, name, index):
    header(tmp_path / "a.safetensors", {"embed.weight": "BF16"})
    header(tmp_path / "b.safetensors", {name: "U8"})
    if index:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: "b.safetensors"}}))
    assert survey.read(tmp_path).head == "U8"


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": {"head.weight": "no.safetensors"}}', '{"weight_map": 3}'])
def test_a_head_that_cannot_be_read_is_told_as_the_checkpoint_is(tmp_path, text):
    assert survey.read(tmp_path).head is None
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"download it again|cannot be read"):
        survey.read(tmp_path)
