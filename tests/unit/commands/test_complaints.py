"""What stopped a launch, in one line that names what to change."""

import json

import pytest

from sglang_sm120.commands.plan import complaints

EAGLE = ["--tp", "2", "--speculative-algorithm", "EAGLE"]


@pytest.fixture
def model(tmp_path):
    """A directory whose configuration has a null, a nested text and a quantization."""
    config = {
        "model_type": "deepseek_v41",
        "kv_lora_rank": None,
        "text_config": {"hidden_size": "wide", "index_topk": 512},
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 0]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Validation error for field 'kv_lora_rank': expected int", "(config.json: kv_lora_rank is null)"),
        ("Validation error for field 'hidden_size': expected int", '(config.json: hidden_size is "wide")'),
        ("Validation error for field 'rope_parameters': no dict", "(config.json)"),
        ("a block of weight_block_size is empty", "(config.json: weight_block_size is [0, 0])"),
        ("index_topk of 512 needs tp", "(--tp 2, config.json: index_topk is 512)"),
    ],
)
def test_a_fault_of_the_configuration_blames_no_flag(text, names, model):
    assert complaints.message(ValueError(text), EAGLE, model) == f"{text} {names}"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (EAGLE, "(--speculative-eagle-topk is not given; --speculative-eagle-topk 1 works)"),
        ([*EAGLE, "--speculative-eagle-topk", "4"], "(--speculative-eagle-topk 4; --speculative-eagle-topk 1 works)"),
        ([*EAGLE, "--speculative-eagle-topk=2"], "(--speculative-eagle-topk=2; --speculative-eagle-topk 1 works)"),
    ],
)
def test_a_tree_leads_to_the_flag_that_grows_it(given, names, model):
    said = "Only EAGLE speculative algorithm with topk == 1 is supported for DeepseekV4ForCausalLM"
    assert complaints.message(ValueError(said), given, model) == f"{said} {names}"


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["--speculative-draft-model-path", "/no/where"], "--speculative-draft-model-path /no/where"),
        (["--speculative-draft-model-path=/no/where"], "--speculative-draft-model-path=/no/where"),
        (["--tokenizer-path", "no/such"], "--tokenizer-path no/such"),
    ],
)
@pytest.mark.parametrize(
    "said", ["We couldn't connect to 'https://huggingface.co' to load the files", "Repo id must be in the form 'a/b'"]
)
def test_a_mistyped_directory_is_named(given, names, said, model):
    message = complaints.message(OSError(said), [*EAGLE, *given], model)
    assert message.startswith(f"{names} is no directory, and SGLang finds no model of that name: ")


def test_a_directory_that_is_one_is_not_blamed(model):
    said = complaints.message(OSError("https://huggingface.co"), ["--speculative-draft-model-path", model], model)
    assert "is no directory" not in said


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a_b": {"c": {"d": 1}}}'])
def test_a_configuration_that_is_none_changes_nothing(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    assert complaints.message(ValueError("a_b no"), EAGLE, str(tmp_path)).endswith("(--tp, --speculative-algorithm)")
    assert complaints.message(ValueError("no"), [], None) == "no"
