"""Launches with the field's checkpoints on simulated GPUs: what is served, and what is refused before weights load."""

import pytest
from field_checkpoints import HUGGING_FACE, renamed, stored_as, whole, with_block, without, write
from helpers import EAGLE

from sglang_sm120.checkpoint import headers_only
from sglang_sm120.moe.runners import DRAFT_FLAG, TARGET_FLAG

pytestmark = pytest.mark.sglang

TP1, DSPARK = ["--tp", "1"], ["--speculative-algorithm", "DSPARK"]
TP8, EP8 = ["--tp", "8", *DSPARK], ["--tp", "8", "--ep-size", "8", *DSPARK]
EP4 = ["--tp", "4", "--ep-size", "4", "--ep-num-redundant-experts"]
NO_LAYER = ["--json-model-override-args", '{"num_nextn_predict_layers": 0}']
WHOLE = {"SGLANG_SHARED_EXPERT_TP1": "1"}
DRAFT_PATH = "--speculative-draft-model-path"
OURS, OURS_NVFP4 = "Sm120Mxfp4MoEMethod", "Sm120Nvfp4MoEMethod"
CUTLASS_NVFP4, CUTLASS_MXFP4, FP8 = "ModelOptNvFp4FusedMoEMethod", "Mxfp4FlashinferCutlassMoEMethod", "Fp8MoEMethod"
HYBRID, NATIVE = whole(), whole("mxfp4")


def first(tensors, prefix):
    """The same tensors, those with the prefix first in the index."""
    return dict(sorted(tensors.items(), key=lambda item: (not item[0].startswith(prefix), item[0])))


def stages(kind, draft):
    """A checkpoint with three DSpark stages in a format of their own."""
    tensors = whole(kind, "dspark")
    for stage in ("mtp.0", "mtp.1", "mtp.2"):
        tensors = with_block(tensors, stage, draft)
    return tensors


BYTES = {n: ("U8", s) if ".experts." in n and n.endswith(".scale") else (d, s) for n, (d, s) in NATIVE.items()}
NVFP4_DRAFT = with_block(HYBRID, "mtp.0", "hybrid-nvfp4")
MIXED = with_block(whole("fp8"), "mtp.0", "mxfp4")
MADE = {
    "hybrid": (HYBRID, {}),
    "native, HF names": (renamed(NATIVE, HUGGING_FACE), {"kind": "mxfp4"}),
    "V3's names": (renamed(HYBRID, {"mtp.0.": "layers.3."}), {}),
    "BF16 draft": (stored_as(HYBRID, "mtp.0.ffn.experts.", "BF16"), {}),
    "NVFP4 draft": (NVFP4_DRAFT, {}),
    "FP8, MXFP4 draft": (first(MIXED, "layers."), {"kind": "fp8"}),
    "MXFP4 draft first": (first(MIXED, "mtp."), {"kind": "fp8"}),
    "MXFP4 stages first": (first(stages("fp8", "mxfp4"), "mtp."), {"kind": "fp8", "draft": "dspark"}),
    "hybrid, FP8 draft": (with_block(HYBRID, "mtp.0", "fp8"), {}),
    "FP8 stages": (stages("mxfp4", "fp8"), {"kind": "mxfp4", "draft": "dspark"}),
    "bytes": (BYTES, {"kind": "mxfp4"}),
    "hybrid, bytes": (without(HYBRID, "mtp.0.ffn") | {n: e for n, e in BYTES.items() if n.startswith("mtp.0.ffn")}, {}),
    "no input scales": (without(HYBRID, ".input_scale"), {}),
    "0731": (whole(draft="dspark"), {"draft": "dspark"}),
    "stripped": (without(NATIVE, "mtp."), {"kind": "mxfp4"}),
    "MXFP4 layer": (with_block(HYBRID, "layers.1", "mxfp4"), {}),
    "pruned": (whole("mxfp4", experts=10), {"kind": "mxfp4", "sizes": {"experts": 10}}),
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    root = tmp_path_factory.mktemp("field")
    made = {name: write(root / name.replace(" ", "-"), tensors, **more) for name, (tensors, more) in MADE.items()}
    for kind in ("hybrid-nvfp4", "mxfp4"):
        made[f"V4.1 {kind}"] = headers_only.write(root / kind, kind, "dspark", "v4.1", whole=True)
    return made


# id, checkpoint, flags, target, draft
SERVED = [
    ("V4.1 NVFP4 at TP8", "V4.1 hybrid-nvfp4", TP8, OURS_NVFP4, OURS),
    ("V4.1 NVFP4 at TP8, EP8", "V4.1 hybrid-nvfp4", [*EP8, TARGET_FLAG, "flashinfer_cutlass"], CUTLASS_NVFP4, OURS),
    ("V4.1 MXFP4 at TP8", "V4.1 mxfp4", TP8, OURS, OURS),
    ("V4.1 MXFP4 at TP8, EP8", "V4.1 mxfp4", EP8, CUTLASS_MXFP4, CUTLASS_MXFP4),
    ("HF names", "native, HF names", TP1 + EAGLE, CUTLASS_MXFP4, CUTLASS_MXFP4),
    ("V3's names", "V3's names", TP1 + EAGLE, OURS_NVFP4, OURS),
    ("BF16 draft unread", "BF16 draft", TP1, OURS_NVFP4, None),
    ("NVFP4 draft unread", "NVFP4 draft", TP1, OURS_NVFP4, None),
    ("another draft", "NVFP4 draft", [*TP1, *EAGLE, DRAFT_PATH, "hybrid"], OURS_NVFP4, OURS),
    ("FP8 and MXFP4", "FP8, MXFP4 draft", TP1 + EAGLE, FP8, OURS),
    ("MXFP4 first", "MXFP4 draft first", TP1 + EAGLE, FP8, OURS),
    ("MXFP4 first, unread", "MXFP4 draft first", TP1, FP8, None),
    ("MXFP4 stages", "MXFP4 stages first", TP1 + DSPARK, FP8, OURS),
    ("on Marlin", "MXFP4 draft first", [*TP1, *EAGLE, DRAFT_FLAG, "marlin"], FP8, "Mxfp4MarlinMoEMethod"),
    ("hybrid and FP8", "hybrid, FP8 draft", TP1 + EAGLE, OURS_NVFP4, FP8),
    ("bytes", "bytes", TP1 + EAGLE, OURS, OURS),
    ("no input scales", "no input scales", TP1, OURS_NVFP4, None),
    ("DSpark", "0731", TP1 + DSPARK, OURS_NVFP4, OURS),
    ("stripped, unread", "stripped", TP1, CUTLASS_MXFP4, None),
    ("redundant", "pruned", [*EP4, "2"], CUTLASS_MXFP4, None),
]
# id, checkpoint, flags, environment, what the error must say
REFUSED = [
    ("288 on CUTLASS", "V4.1 hybrid-nvfp4", [*TP8, TARGET_FLAG, "flashinfer_cutlass"], {}, "a rank has 288 (--ep-si"),
    ("288 by variable", "V4.1 hybrid-nvfp4", TP8, {"SGLANG_SM120_TARGET_MOE": "marlin"}, "TARGET_MOE marlin cannot"),
    ("NVFP4 draft", "NVFP4 draft", TP1 + EAGLE, {}, "the draft's experts of mtp.0 are NVFP4 (U8), and SGLang would"),
    ("NVFP4 draft elsewhere", "hybrid", [*TP1, *EAGLE, DRAFT_PATH, "NVFP4 draft"], {}, "NVFP4-draft: the draft's ex"),
    ("BF16 draft", "BF16 draft", TP1 + EAGLE, {}, "the draft's experts of mtp.0 are BF16, and SGLang"),
    ("FP8 stages", "FP8 stages", TP1 + DSPARK, {}, "the DSpark draft's experts are FP8 and the target's mxfp4"),
    ("without the patch", "FP8, MXFP4 draft", TP1 + EAGLE, {"SGLANG_SM120_DISABLE": "draft_format"}, "read them as"),
    ("forced", "FP8, MXFP4 draft", TP1 + EAGLE, {"SGLANG_DSV4_FP4_EXPERTS": "0"}, "SGLang would read them as FP8"),
    ("or for a target", "MXFP4 draft first", TP1, {"SGLANG_SM120_DISABLE": "draft_format"}, "the target's experts a"),
    ("bytes on Marlin", "hybrid, bytes", [*TP1, *EAGLE, DRAFT_FLAG, "marlin"], {}, "stores scales as U8, which"),
    ("native bytes", "bytes", [*TP1, TARGET_FLAG, "flashinfer_mxfp4"], {}, "stores scales as U8, which SGLang's loa"),
    ("no input scales", "no input scales", [*TP1, TARGET_FLAG, "flashinfer_cutlass"], {}, "no input_scale for them"),
    ("EAGLE on 0731", "0731", TP1 + EAGLE, {}, "its draft is DSpark's: --speculative-algorithm DSPARK"),
    ("DSpark without stages", "hybrid", TP1 + DSPARK, {}, "no DSpark stages: mtp.0.main_proj.weight is not there"),
    ("stripped", "stripped", TP1 + EAGLE, {}, "no NextN layer for EAGLE: mtp.0.e_proj.weight is not there"),
    ("no NextN layers", "hybrid", [*TP1, *EAGLE, *NO_LAYER], {}, "num_nextn_predict_layers is 0 (config.json, --json"),
    ("MXFP4 layer", "MXFP4 layer", TP1, {}, "the experts of layers.1 are MXFP4 (I8), and SGLang would read them as"),
    ("uneven", "pruned", [*EP4, "1"], WHOLE, "expected a divisor of n_routed_experts in config.json + --ep-num-redund"),
    ("uneven draft", "pruned", [*EP4, "2", *EAGLE], WHOLE, "expected a divisor of the draft's 10 experts, which has"),
]  # fmt: skip


@pytest.fixture(scope="module")
def answers(probe, directories):
    asked = [(i, c, f, WHOLE) for i, c, f, *_ in SERVED] + [(f"{i}!", c, f, e) for i, c, f, e, _ in REFUSED]
    launches = [
        {"model": str(directories[c]), "flags": [str(directories.get(w, w)) for w in f], "env": e}
        for _, c, f, e in asked
    ]
    return dict(zip([row[0] for row in asked], probe("sm120", launches), strict=True))


@pytest.mark.parametrize(
    ("name", "target", "draft"), [(i, t, d) for i, _, _, t, d in SERVED], ids=[r[0] for r in SERVED]
)
def test_served(answers, name, target, draft):
    answer = answers[name]
    assert answer["errors"] == []
    assert answer["target"]["method"] == target
    assert (answer["draft"] or {}).get("method") == draft
    assert answer["target"]["faults"] == []


@pytest.mark.parametrize(("name", "says"), [(i, s) for i, *_, s in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused(answers, name, says):
    (error,) = answers[f"{name}!"]["errors"]
    assert says in error
