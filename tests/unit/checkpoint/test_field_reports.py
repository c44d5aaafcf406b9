"""What the field's checkpoints have that a launch cannot read: said from headers, before weights load."""

import re
from dataclasses import replace

import pytest
from field_checkpoints import HUGGING_FACE, renamed, stored_as, whole, with_block, without, write

from sglang_sm120.checkpoint import headers_only, inspection

HYBRID, NATIVE, DSPARK = whole(), whole("mxfp4"), whole(draft="dspark")
QUANTIZATION = {
    "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "group_size": 16,
    "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4",
}  # fmt: skip
NVIDIA = ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"]


def said(directory):
    return "; ".join(inspection.inspect(directory).problems)


@pytest.mark.parametrize("kind", ["hybrid-nvfp4", "mxfp4", "fp8"])
@pytest.mark.parametrize("draft", ["nextn", "dspark"])
@pytest.mark.parametrize("names", [{}, HUGGING_FACE], ids=["release", "Hugging Face"])
def test_whole_checkpoints_are_good(tmp_path, kind, draft, names):
    found = inspection.read(write(tmp_path, renamed(whole(kind, draft), names), kind, draft))
    assert found.checkpoint.problems == ()
    assert found.checkpoint.kind == kind
    assert found.draft_problems("EAGLE" if draft == "nextn" else "DSPARK") == []
    assert found.draft_kind == ("fp8" if kind == "fp8" else "mxfp4")


@pytest.mark.parametrize("size", list(headers_only.SIZES))
@pytest.mark.parametrize("kind", ["hybrid-nvfp4", "mxfp4"])
def test_published_models(tmp_path, size, kind):
    draft = "dspark" if size == "v4.1" else "nextn"
    found = inspection.read(headers_only.write(tmp_path, kind, draft, size, layers=2, whole=True))
    shape = headers_only.SIZES[size]
    facts = found.checkpoint
    assert (facts.kind, facts.problems) == (kind, ())
    assert (facts.hidden_size, facts.moe_intermediate_size, facts.experts) == (
        shape.hidden,
        shape.intermediate,
        shape.experts,
    )
    assert found.draft_problems("DSPARK" if draft == "dspark" else "EAGLE") == []


WRONG = {
    "no multipliers": (without(HYBRID, ".weight_scale_2"), "lack w1.weight_scale_2, their multiplier"),
    "one multiplier": (without(HYBRID, "2.ffn.experts.5.w3.weight_scale_2"), "expert 5 of layers.2 lacks w3.weight_sc"),
    "block scales of BF16": (stored_as(HYBRID, "experts.3.w2.weight_scale", "BF16"), "expert 3 of layers.0 has w2.wei"),
    "multipliers of bytes": (stored_as(HYBRID, ".weight_scale_2", "U8"), "have multipliers of U8 (w1.weight_scale_2)"),
    "block scales of int32": (stored_as(HYBRID, ".w2.weight_scale", "I32"), "have scales of I32 (w2.weight_scale); e"),
    "pruned layer": (without(HYBRID, "layers.2.ffn.experts.6.", "layers.2.ffn.experts.7."), "layers.2 has 6 routed ex"),
    "hole": (without(NATIVE, "layers.1.ffn.experts.3."), "layers.1 has 7 routed experts (no expert 3), but config.jso"),
    "no layer": (without(NATIVE, "layers.1.ffn.experts."), "layers.1 has no routed experts; download the checkpoint a"),
    "too many": (whole("mxfp4", experts=12), "layers.0 has routed expert 11, but config.json's n_routed_experts is 8"),
    "too wide": (whole("mxfp4", intermediate=256), "w1.weight of the experts of layers.0 is [256, 128]; config.json's"),
    "BF16 expert": (stored_as(NATIVE, "1.ffn.experts.4.w1.weight", "BF16"), "expert 4 of layers.1 has w1.weight as BF"),
    "e4m3 scales": (stored_as(NATIVE, ".w2.scale", "F8_E4M3"), "have scales of F8_E4M3 (w2.scale); expected F8_E8M0"),
    "FP8 without scales": (without(whole("fp8"), "experts.0.w3.scale"), "expert 0 of layers.0 lacks w3.scale, which"),
}  # fmt: skip


@pytest.mark.parametrize(("tensors", "says"), WRONG.values(), ids=WRONG)
def test_incomplete_targets(tmp_path, tensors, says):
    names = set(tensors)
    kind = "fp8" if tensors is WRONG["FP8 without scales"][0] else "mxfp4"
    kind = "hybrid-nvfp4" if any("weight_scale" in name for name in names) else kind
    assert says in said(write(tmp_path, tensors, kind))


def test_a_part_of_a_checkpoint_proves_nothing_of_what_is_absent(tmp_path):
    first = {
        name: e for name, e in HYBRID.items() if name.startswith(("layers.0.ffn.experts.0", "mtp.0.ffn.experts.0"))
    }
    found = inspection.read(write(tmp_path, first))
    assert found.checkpoint.problems == ()
    assert found.draft_problems("EAGLE") == []


@pytest.mark.parametrize(
    ("block", "ignore", "says"),
    [
        ("layers.1", [], "the experts of layers.1 are MXFP4 (I8), and SGLang would read them as NVFP4"),
        # SGLang does not find its own name of the module by that pattern, and reads NVFP4 all the same.
        ("layers.1", ["layers.1.ffn.experts*"], "the experts of layers.1 are MXFP4 (I8), and SGLang would read them "),
        ("layers.2", ["model.layers.1.mlp.experts*"], "the experts of layers.2 are MXFP4 (I8), and SGLang would read "),
        ("layers.1", ["model.layers.1.*"], None),
        ("layers.1", ["*.layers.1.mlp.experts"], None),
    ],
)  # fmt: skip
def test_a_layer_in_another_format(tmp_path, block, ignore, says):
    """NVIDIA's lists have entries for attention, which must not switch the look at experts off."""
    config = {"quantization_config": QUANTIZATION | {"ignore": NVIDIA + ignore}}
    found = said(write(tmp_path, with_block(HYBRID, block, "mxfp4"), config=config))
    assert says in found if says else found == ""


def test_an_excluded_layer_of_nvfp4(tmp_path):
    config = {"quantization_config": QUANTIZATION | {"ignore": [*NVIDIA, "model.layers.0.mlp.experts"]}}
    assert "layers.0 are NVFP4 (U8), and SGLang would read them as MXFP4" in said(
        write(tmp_path, HYBRID, config=config)
    )


@pytest.mark.parametrize("entry", [None, 5, "mtp.*", ["(", {"a": 1}, None, "layers.["]])
def test_odd_lists_of_what_is_ignored(tmp_path, entry):
    config = {"quantization_config": QUANTIZATION | {"ignore": entry}}
    assert said(write(tmp_path, HYBRID, config=config)) == ""


@pytest.mark.parametrize("names", [{}, HUGGING_FACE], ids=["release", "Hugging Face"])
def test_undeclared_nvfp4(tmp_path, names):
    config = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    directory = write(tmp_path, renamed(HYBRID, names), config=config)
    assert re.search(
        r"are NVFP4 \(U8 bytes with F8_E4M3 scales\), but .*moe_quant_algo does not say so", said(directory)
    )


@pytest.mark.parametrize("name", ["gate_proj", "up_proj", "down_proj"])
def test_a_missing_scale_under_hugging_faces_names(tmp_path, name):
    directory = write(tmp_path, without(renamed(NATIVE, HUGGING_FACE), f"experts.2.{name}.scale"), "mxfp4")
    assert "expert 2 of layers.0 lacks w" in said(directory)


def test_scales_of_other_exporters(tmp_path):
    """U8 codes with a U8 scale for 32 are MXFP4 under another name, not NVFP4 that lost its declaration."""
    tensors = stored_as(renamed(NATIVE, {".scale": ".weight_scale"}), ".experts.", "U8")
    found = said(write(tmp_path, tensors, "mxfp4"))
    assert "codes of U8 with scales named weight_scale (U8)" in found
    assert "moe_quant_algo" not in found


@pytest.mark.parametrize("kind", ["hybrid-nvfp4", "mxfp4"])
def test_scales_that_sglangs_loader_would_convert(tmp_path, kind):
    part = ".weight_scale" if kind == "hybrid-nvfp4" else ".scale"
    tensors = {n: ("U8", s) if n.endswith(part) and ".experts." in n else (d, s) for n, (d, s) in whole(kind).items()}
    found = inspection.read(write(tmp_path, tensors, kind))
    assert found.checkpoint.problems == ()
    assert found.converted_scales(draft=False) == "U8"
    assert found.converted_scales(draft=True) == (None if kind == "hybrid-nvfp4" else "U8")


@pytest.mark.parametrize(("dtype", "one", "third"), [("F32", b"\0\0\x80?", b"\0\0\xc0?"), ("BF16", b"\x80?", b"\xc0?")])
def test_float_scales_are_powers_of_two(tmp_path, dtype, one, third):
    """1.0 is one, 1.5 is none; SGLang's loader would round."""
    directory = write(tmp_path, stored_as(NATIVE, ".w1.scale", dtype), "mxfp4")
    files = [file for file in sorted(directory.glob("*.safetensors")) if b"layers.1.ffn.experts" in file.read_bytes()]
    place = inspection.read(directory).survey.blocks["layers.1"].scale
    assert [place.file] == files
    assert said(directory) == said(replace_bytes(place, one)) == ""
    assert f"experts of layers.1 have scales of {dtype} (w1.scale) that are no powers" in said(
        replace_bytes(place, third)
    )


def test_scales_of_mixed_types_that_hold_the_same_numbers(tmp_path):
    assert said(write(tmp_path, stored_as(NATIVE, "1.ffn.experts.3.w2.scale", "BF16"), "mxfp4")) == ""


def replace_bytes(place, number):
    """Write the number over the place's third; returns the checkpoint."""
    data = bytearray(place.file.read_bytes())
    at = 8 + int.from_bytes(data[:8], "little") + place.begin + 2 * len(number)
    data[at : at + len(number)] = number
    place.file.write_bytes(data)
    return place.file.parent


def test_input_scales(tmp_path):
    assert inspection.read(write(tmp_path / "a", HYBRID)).input_scales
    assert not inspection.read(write(tmp_path / "b", without(HYBRID, "2.ffn.experts.7.w2.input_scale"))).input_scales
    found = inspection.read(write(tmp_path / "c", without(HYBRID, ".input_scale")))
    assert (found.input_scales, found.checkpoint.problems) == (False, ())


def test_many_faults_of_a_kind_are_counted(tmp_path):
    tensors = without(whole("mxfp4", layers=6), ".experts.5.")
    problems = inspection.inspect(write(tmp_path, tensors, "mxfp4", sizes={"layers": 6})).problems
    assert problems[3:] == ("and 3 more of this kind",)


def test_the_shape_of_a_family():
    assert headers_only.SIZES["v4.1"].block == 32
    with pytest.raises(ValueError, match=r"family is 'v5'; expected one of v4, v4\.1"):
        replace(headers_only.SIZES["flash"], family="v5")


@pytest.mark.parametrize(
    ("key", "says"), [("num_hidden_layers", "layers.3 has no"), ("n_routed_experts", "(no expert 8)")]
)
def test_a_huge_count_is_no_work(tmp_path, key, says):
    assert says in said(write(tmp_path, HYBRID, config={key: 10**30}))
