"""Routed experts under the wrong name, with the wrong scales, or of another exporter: said before weights load."""

import re

import pytest

from sglang_sm120.checkpoint import expert_formats
from sglang_sm120.checkpoint.inspection import Checkpoint, Inspected, _target
from sglang_sm120.checkpoint.survey import Experts, Survey

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = FP8 | {"quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "group_size": 16, "ignore": ["mtp.*"]}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}


def expert(weight, columns=2048, projections=("w1", "w2", "w3"), name="weight", **scales):
    """A block of experts whose matrices have 4096 columns; scales are (dtype, columns)."""
    block = {}
    for p in projections:
        block[f"{p}.{name}"] = {"dtype": weight, "shape": [2048, columns]}
        for part, (dtype, many) in scales.items():
            block[f"{p}.{part}"] = {"dtype": dtype, "shape": [2048, many] if many else []}
    return block


NVFP4_EXPERT = expert("U8", weight_scale=("F8_E4M3", 256), weight_scale_2=("F32", 0), input_scale=("F32", 0))
WITHOUT_INPUT_SCALE = {part: entry for part, entry in NVFP4_EXPERT.items() if "input_scale" not in part}
MXFP4_EXPERT = expert("I8", scale=("F8_E8M0", 128))


def of(target, quantization):
    """Kind and problems of a target whose first expert has these tensors."""
    return _target(quantization, Survey({"layers.0": Experts(target)}), {})


def of_draft(draft, quantization=NVFP4):
    """The same of a draft."""
    survey = Survey({"layers.0": Experts(NVFP4_EXPERT), "mtp.0": Experts(draft)})
    return Inspected(Checkpoint("hybrid-nvfp4"), survey, {"hidden_size": 4096}, quantization).draft_problems("EAGLE")


@pytest.mark.parametrize(
    ("target", "quantization", "kind"),
    [
        (NVFP4_EXPERT, NVFP4, "hybrid-nvfp4"),
        (WITHOUT_INPUT_SCALE, NVFP4, "hybrid-nvfp4"),
        (expert("U8", weight_scale=("U8", 256), weight_scale_2=("F32", 0)), NVFP4, "hybrid-nvfp4"),
        (MXFP4_EXPERT, FP8, "mxfp4"),
        (expert("U8", scale=("F8_E8M0", 128)), FP8, "mxfp4"),
        (expert("I8", weight_scale_inv=("F32", 128)), FP8, "mxfp4"),
    ],
)
def test_what_can_be_read(target, quantization, kind):
    assert of(target, quantization) == (kind, [])


WITHOUT_A_SCALE = {part: entry for part, entry in NVFP4_EXPERT.items() if part != "w2.weight_scale"}
WITHOUT_A_MULTIPLIER = {part: entry for part, entry in NVFP4_EXPERT.items() if part != "w3.weight_scale_2"}
MXFP4_BY_SCALES = "moe_quant_algo says NVFP4, but the routed experts are MXFP4 by their scales"
NAMED = r"have codes of {} with scales named weight_scale \({}\); SGLang reads MXFP4 scales named scale or"
MULTIPLIER = {"weight_scale_2": ("F32", 0)}
WRONG = {
    "e8m0 as NVFP4": (expert("U8", weight_scale=("F8_E8M0", 128), **MULTIPLIER), NVFP4, MXFP4_BY_SCALES),
    "groups of 32 as NVFP4": (expert("U8", weight_scale=("F8_E4M3", 128), **MULTIPLIER), NVFP4, MXFP4_BY_SCALES),
    "MXFP4 as NVFP4": (expert("U8", scale=("F8_E8M0", 128)), NVFP4, MXFP4_BY_SCALES),
    "undeclared": (NVFP4_EXPERT, FP8, r"NVFP4 \(U8 bytes with F8_E4M3 scales\), but .*moe_quant_algo does not say so"),
    "NVFP4 as MXFP4": (expert("I8", weight_scale=("F8_E4M3", 256)), FP8, NAMED.format("I8", "F8_E4M3")),
    "other names": (expert("U8", weight_scale=("U8", 128)), FP8, NAMED.format("U8", "U8")),
    "e4m3 as MXFP4": (expert("I8", scale=("F8_E4M3", 128)), FP8, r"scales of F8_E4M3 \(w1\.scale\); expected F8_E8M0"),
    "groups of 16 as MXFP4": (
        expert("I8", scale=("F8_E8M0", 256)),
        FP8,
        r"layers\.0 have a scale for every 16 codes \(w1\.scale\); expected one for 32, as MXFP4 has",
    ),
    "no multiplier": (WITHOUT_A_MULTIPLIER, NVFP4, r"layers\.0 are NVFP4 and lack w3\.weight_scale_2, their multipl"),
    "no scale": (WITHOUT_A_SCALE, NVFP4, r"layers\.0 have w2\.weight but no scale tensor"),
    "group size 32": (
        NVFP4_EXPERT,
        NVFP4 | {"group_size": 32},
        r"group_size is 32; NVFP4 experts need it, and have 16",
    ),
}


@pytest.mark.parametrize(("target", "quantization", "says"), WRONG.values(), ids=WRONG)
def test_what_is_said(target, quantization, says):
    problems = "; ".join(of(target, quantization)[1])
    assert re.search(says, problems), problems


PACKED = expert("U8", name="weight_packed", weight_scale=("F8_E4M3", 256), weight_global_scale=("F32", 1))
HUGGING_FACE = {part.replace("w1", "gate_proj"): entry for part, entry in PACKED.items()}


@pytest.mark.parametrize("target", [PACKED, HUGGING_FACE], ids=["w1", "gate_proj"])
@pytest.mark.parametrize("quantization", [COMPRESSED, NVFP4], ids=["declared", "declared as hybrid"])
def test_nvfp4_of_compressed_tensors_is_refused_by_name(target, quantization):
    kind, (said,) = of(target, quantization)
    assert kind == "other"
    assert "the experts of layers.0 are NVFP4 of compressed-tensors" in said
    assert "weight_packed" in said
    assert "weight_global_scale, which is the inverse of a multiplier" in said
    assert said.endswith("serve such a checkpoint or an MXFP4 one")


def test_a_draft_of_compressed_tensors_is_refused_by_name():
    (said,) = of_draft(PACKED)
    assert said.startswith("the experts of mtp.0 are NVFP4 of compressed-tensors (w1.weight_packed, w1.weight_global")


def test_a_draft_of_quark_is_refused_by_name():
    (said,) = of_draft(expert("U8", weight_scale=("U8", 128)), {"quant_method": "quark"})
    assert said.startswith("the experts of mtp.0 are 4-bit of Quark")


def test_integers_of_compressed_tensors_are_left_to_sglang():
    assert of(expert("I32", name="weight_packed", weight_scale=("BF16", 32)), COMPRESSED) == ("other", [])


@pytest.mark.parametrize("scale", [("F8_E4M3", 256), ("U8", 128)], ids=["NVFP4", "MXFP4"])
def test_quark_is_refused_by_name(scale):
    kind, (said,) = of(expert("U8", weight_scale=scale), {"quant_method": "quark"})
    assert kind == "other"
    assert said.startswith("the experts of layers.0 are 4-bit of Quark (quant_method quark, w1.weight); SGLang's Deep")


@pytest.mark.parametrize("shape", [None, [], [0], [0, 0], ["a", "b"], [2, 2, 2]])
def test_shapes_that_say_nothing_prove_nothing(shape):
    block = {part: entry | {"shape": shape} for part, entry in NVFP4_EXPERT.items()}
    assert expert_formats.unreadable("layers.0", block) == []
    assert expert_formats.kind_of(block) == "hybrid-nvfp4"
