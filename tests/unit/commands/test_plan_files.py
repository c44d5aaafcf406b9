"""What `plan` says of a launch's checkpoints beside SGLang's answer."""

import json

import pytest
from field_checkpoints import renamed, stored_as, whole, with_block, without, write

from sglang_sm120.commands.plan import checkpoint_faults, command
from sglang_sm120.commands.plan.document import Answer, Sizes

HYBRID = whole()
NVFP4_DRAFT = with_block(HYBRID, "mtp.0", "hybrid-nvfp4")


@pytest.fixture
def plan(monkeypatch):
    """(directory, flags, Sizes) -> the plan, of an SGLang that resolves everything; `asked` are its questions."""
    asked = []
    monkeypatch.setattr(command.releases, "installed", lambda: "0.5.23")
    monkeypatch.setattr(command.gpu, "detect", lambda: None)

    def make(model, flags=(), stock=False, **sizes):
        one = dict.fromkeys(("tp_size", "ep_size", "moe_dp_size", "pp_size"), 1)
        one |= {"speculative_algorithm": None, "mem_fraction_static": 0.8}
        answer = Answer(sizes=Sizes(**one | sizes))
        monkeypatch.setattr(command, "ask", lambda *_: asked.append(model) or answer)
        return command.make(model, list(flags), stock=stock)

    make.asked = asked
    return make


def faults(model, states=(), **flags):
    """What the checkpoints have against a launch of these flags."""
    return checkpoint_faults.of(
        str(model), {name: str(f) for name, f in flags.items()}.get, dict.fromkeys(states, "applied")
    )


def test_a_draft_counts_when_it_is_read(tmp_path):
    model, states = write(tmp_path / "a", NVFP4_DRAFT), ["draft_format"]
    assert faults(model, states) == []
    (said,) = faults(model, states, speculative_algorithm="EAGLE")
    assert said.startswith(f"{model}: the draft's experts of mtp.0 are NVFP4 (U8), and SGLang would read them as MXFP4")
    assert faults(model, states, speculative_algorithm="EAGLE", speculative_draft_load_format="dummy") == []
    assert faults(model, states, speculative_algorithm="EAGLE", load_format="dummy") == []
    assert faults(model, ["deepseek_v4_gate"], speculative_algorithm="EAGLE") == []  # has been asked
    other = write(tmp_path / "b", HYBRID)
    assert faults(model, states, speculative_algorithm="EAGLE", speculative_draft_model_path=other) == []
    (said,) = faults(other, states, speculative_algorithm="EAGLE", speculative_draft_model_path=model)
    assert said.startswith(f"{model}: the draft's")


def test_without_the_overlay_sglang_looks_at_one_expert(tmp_path):
    model = write(tmp_path, with_block(whole("fp8"), "mtp.0", "mxfp4"), "fp8")
    assert faults(model, ["draft_format"], speculative_algorithm="EAGLE") == []
    (said,) = faults(model, speculative_algorithm="EAGLE")
    assert "the draft's experts of mtp.0 are MXFP4 (I8), and SGLang would read them as FP8" in said
    assert faults(model) == []


def test_a_broken_directory_of_a_draft_is_an_error_and_no_traceback(tmp_path, plan):
    model, draft = write(tmp_path / "a", HYBRID), write(tmp_path / "b", HYBRID)
    shard = sorted(draft.glob("*.safetensors"))[-1]
    shard.write_bytes(b"")
    (said,) = plan(model, speculative_algorithm="EAGLE", speculative_draft_model_path=str(draft)).errors
    assert said.startswith(f"{shard} does not begin with a safetensors header")
    assert faults(model, speculative_algorithm="EAGLE", speculative_draft_model_path=draft) == [said]


@pytest.mark.parametrize("number", [0, 2, -1])
def test_an_empty_shard_anywhere_is_an_error_and_no_traceback(tmp_path, plan, number):
    shard = sorted(write(tmp_path, HYBRID).glob("*.safetensors"))[number]
    shard.write_bytes(b"")
    (said,) = plan(tmp_path).errors
    assert shard.name in said
    assert plan.asked == []


def test_without_the_overlay_faults_are_reported_and_the_launch_is_shown(tmp_path, plan):
    model = write(tmp_path, without(HYBRID, "layers.1.ffn.experts.3."))
    (said,) = plan(model, stock=True).errors
    assert "layers.1 has 7 routed experts" in said
    assert plan.asked == [model]
    assert plan(model, stock=True).memory is not None
    assert plan(model).memory is None


@pytest.mark.parametrize("flags", [["--load-format", "dummy"], ["--load-format=dummy"]])
def test_weights_that_are_not_read_have_no_faults(tmp_path, plan, flags):
    model = write(tmp_path, without(HYBRID, "layers.1.ffn.experts.3."))
    assert plan(model, flags).errors == ()
    assert plan(model, ["--load-format", "auto"]).errors != ()


def test_a_format_that_no_patch_is_about_is_named_and_sglang_is_asked(tmp_path, plan):
    tensors = stored_as(renamed(whole("mxfp4"), {".weight": ".weight_packed"}), ".weight_packed", "I32")
    config = {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}
    (said,) = plan(write(tmp_path / "a", tensors, "mxfp4", config=config)).warnings
    assert "DeepSeek-V4 with experts in a format of compressed-tensors that the overlay does not patch" in said
    assert len(plan.asked) == 1
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (said,) = plan(tmp_path).warnings
    assert said.endswith("not a DeepSeek-V4 checkpoint; the overlay leaves it alone")
    assert len(plan.asked) == 1


def test_redundant_experts_and_the_drafts_own_directory_are_weighed(tmp_path, plan):
    model = write(
        tmp_path / "a",
        whole("mxfp4", hidden=4096, intermediate=2048),
        "mxfp4",
        sizes={"hidden": 4096, "intermediate": 2048},
    )
    alone = plan(model).memory.weights_gib_least
    copies = plan(model, ep_num_redundant_experts=8).memory.weights_gib_least
    assert copies == pytest.approx(2 * alone, rel=0.1)
    draft = plan(model, speculative_algorithm="EAGLE", speculative_draft_model_path=str(model)).memory
    assert draft.weights_gib_least > alone
