"""What `plan` makes of a checkpoint before and after SGLang is asked, with a stand-in for SGLang's answer."""

import json

import pytest

from sglang_sm120.checkpoint import headers_only
from sglang_sm120.commands.plan import command
from sglang_sm120.commands.plan.document import Answer, OtherKernels, Sizes

SIZES = Sizes(tp_size=2, ep_size=1, moe_dp_size=1, pp_size=1, speculative_algorithm="EAGLE", mem_fraction_static=0.8)
OTHERS = OtherKernels(
    attention="dsv4", draft_attention=None, sparse_mla="FlashInfer", indexer="TileLang", all_reduce="NCCL"
)


@pytest.fixture
def asked(monkeypatch):
    """The requests that SGLang got."""
    requests = []

    def ask(request, _stock):
        requests.append(request)
        return Answer(sizes=SIZES, others=OTHERS)

    monkeypatch.setattr(command, "ask", ask)
    return requests


def configured(directory, **keys):
    (directory / "config.json").write_text(json.dumps({"model_type": "deepseek_v4"} | keys))
    return directory


@pytest.mark.parametrize("quantizer", ["compressed-tensors", "quark", "awq"])
def test_another_exporter_is_named_and_sglang_asked(asked, tmp_path, quantizer):
    made = command.make(configured(tmp_path, quantization_config={"quant_method": quantizer}), ["--tp", "2"], "sm120")
    assert len(asked) == 1
    assert any(f"experts in a format of {quantizer} that the overlay does not patch" in w for w in made.warnings)
    assert not any("not a DeepSeek-V4 checkpoint" in w for w in made.warnings)


def test_another_model_is_not_asked_about(asked, tmp_path):
    made = command.make(configured(tmp_path, model_type="llama"), [], "sm120")
    assert asked == []
    assert "not a DeepSeek-V4 checkpoint" in made.warnings[0]


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("model-00002-of-00002.safetensors", b""),
        ("old.safetensors", b""),
        ("model-00002-of-00002.safetensors", b"version https://git-lfs.github.com/spec/v1\n"),
        ("model-00001-of-00002.safetensors", b'\x10\x00\x00\x00\x00\x00\x00\x00{"a": '),
    ],
)
def test_a_shard_that_cannot_be_read_is_an_error_or_no_matter(asked, tmp_path, name, raw):
    """A download that was interrupted; a leftover that SGLang does not read may be one too."""
    model = headers_only.write(tmp_path / "model", "hybrid-nvfp4", "nextn")
    (model / name).write_bytes(raw)
    made = command.make(model, ["--tp", "2"], "sm120")
    assert all(name in error for error in made.errors)
    assert made.errors or name == "old.safetensors"


def test_what_sglang_chose_beside_moe_is_shown(asked, tmp_path):
    model = headers_only.write(tmp_path / "model", "hybrid-nvfp4", "nextn")
    made = command.make(model, ["--tp", "2"], "sm120")
    (line,) = [line for line in command.render(made).splitlines() if line.startswith("not MoE ")]
    assert line.endswith("attention dsv4, sparse MLA FlashInfer, indexer TileLang, all-reduce NCCL")
    assert (asked[0].head, asked[0].arch) == (None, "sm120")
