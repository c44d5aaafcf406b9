"""Drafts of the field's checkpoints: looked at when a launch reads them, in the directory that it names."""

import json

import pytest
from field_checkpoints import renamed, stored_as, whole, with_block, without, write

from sglang_sm120.checkpoint import first_expert, inspection, memory
from sglang_sm120.moe import launch_files

HYBRID, DSPARK = whole(), whole(draft="dspark")
OTHERWISE = "leave speculative decoding out, or name another draft with --speculative-draft-model-path"


def of(directory, algorithm="EAGLE", reads=None):
    return "; ".join(inspection.read(directory).draft_problems(algorithm, reads))


NEEDS = {
    "0731 with EAGLE": (DSPARK, "dspark", "EAGLE", "no NextN layer for EAGLE: mtp.0.e_proj.weight is not there; its d"),
    "stripped, EAGLE": (without(HYBRID, "mtp."), "nextn", "EAGLE", f"mtp.0.e_proj.weight is not there; {OTHERWISE}"),
    "stripped, NEXTN": (without(HYBRID, "mtp."), "nextn", "NEXTN", "no NextN layer for NEXTN"),
    "experts left": (without(HYBRID, "e_proj"), "nextn", "EAGLE", "no NextN layer for EAGLE"),
    "NextN with DSPARK": (HYBRID, "nextn", "DSPARK", "its draft is a NextN layer: --speculative-algorithm EAGLE"),
    "stripped, DSPARK": (without(DSPARK, "mtp."), "dspark", "DSPARK", "no DSpark stages: mtp.0.main_proj.weight is "),
}  # fmt: skip


@pytest.mark.parametrize(("tensors", "draft", "algorithm", "says"), NEEDS.values(), ids=NEEDS)
def test_a_draft_that_is_not_the_one_asked_for(tmp_path, tensors, draft, algorithm, says):
    directory = write(tmp_path, tensors, draft=draft)
    assert says in of(directory, algorithm)
    assert inspection.inspect(directory).problems == ()  # a launch without speculation goes on


@pytest.mark.parametrize("layers", [0, 2, None])
def test_a_configuration_of_no_or_many_nextn_layers(tmp_path, layers):
    directory = write(tmp_path, HYBRID, config={"num_nextn_predict_layers": layers})
    assert of(directory) == f"config.json: num_nextn_predict_layers is {layers}; SGLang's NextN draft needs 1"
    assert of(directory, "NGRAM") == ""


def transcoded(kind, dtype=None):
    """A hybrid checkpoint whose draft is in another format."""
    tensors = with_block(HYBRID, "mtp.0", kind)
    if dtype is None:
        return tensors
    return stored_as(
        {n: e for n, e in tensors.items() if "mtp.0.ffn" not in n or ".weight" in n}, "mtp.0.ffn.exp", dtype
    )


OTHER_NAMES = renamed(HYBRID, {f"{w}.scale": f"{w}.weight_scale" for w in ("w1", "w2", "w3")})
NOT_PRUNED = HYBRID | {n: e for n, e in whole(experts=12).items() if n.startswith("mtp.0.ffn.experts.")}
FORMATS = {
    "NVFP4": (transcoded("hybrid-nvfp4"), "the draft's experts of mtp.0 are NVFP4 (U8), and SGLang would read them as"),
    "BF16": (transcoded("mxfp4", "BF16"), "the draft's experts of mtp.0 are BF16, and SGLang would read them as"),
    "I8, no scale": (transcoded("mxfp4", "I8"), "the routed experts of mtp.0 have w1.weight but no scale tensor besi"),
    "I8, weight_scale": (OTHER_NAMES, "of mtp.0 have codes of I8 with scales named weight_scale (F8_E8M0)"),
    "e4m3 scales": (stored_as(HYBRID, ".w3.scale", "F8_E4M3"), "of mtp.0 have scales of F8_E4M3 (w3.scale); expected"),
    "lost experts": (without(HYBRID, "mtp.0.ffn.experts.2."), "mtp.0 has 7 routed experts (no expert 2), but config"),
    "not pruned": (NOT_PRUNED, "mtp.0 has routed expert 11, but config.json's n_routed_experts is 8"),
}  # fmt: skip


@pytest.mark.parametrize(("tensors", "says"), FORMATS.values(), ids=FORMATS)
def test_a_draft_that_cannot_be_read(tmp_path, tensors, says):
    directory = write(tmp_path, tensors)
    assert says in of(directory)
    assert inspection.inspect(directory).problems == ()


@pytest.mark.parametrize(("target", "draft"), [("fp8", "mxfp4"), ("mxfp4", "fp8"), ("hybrid-nvfp4", "fp8")])
def test_a_draft_in_a_format_of_its_own(tmp_path, target, draft):
    """Served where SGLang looks at the draft; where it looks at the index's first expert, that is said."""
    found = inspection.read(write(tmp_path, with_block(whole(target), "mtp.0", draft), target))
    assert (found.checkpoint.kind, found.checkpoint.problems, found.draft_kind) == (target, (), draft)
    files = launch_files.of_draft(found, str(tmp_path), "EAGLE", None)
    assert files.problems("EAGLE", {"draft_format": "applied"}) == []
    (said,) = files.problems("EAGLE", {})
    reads = "FP8" if target == "fp8" else "MXFP4"
    assert said.endswith(f"and SGLang would read them as {reads}; {OTHERWISE}")


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("first", ["mtp.", "layers."])
def test_whose_expert_comes_first_does_not_matter(tmp_path, first, index):
    tensors = with_block(whole("fp8"), "mtp.0", "mxfp4")
    ordered = dict(sorted(tensors.items(), key=lambda item: (not item[0].startswith(first), item[0])))
    directory = write(tmp_path, ordered, "fp8", index=index)
    assert (first_expert.kind(directory, draft=False), first_expert.kind(directory, draft=True)) == ("fp8", "mxfp4")
    files = launch_files.of_draft(inspection.read(directory), str(directory), None, None)
    assert files.target.checkpoint.kind == "fp8"
    assert files.problems(None, {"draft_format": "applied"}) == []
    says = "the target's experts are FP8, and SGLang would read them as MXFP4, the format of mtp.0, which comes first"
    # Without an index SGLang looks into the first shard, which is the target's here.
    assert says in "".join(files.problems(None, {})) or first == "layers." or not index


def test_an_nvfp4_target_is_told_from_its_draft(tmp_path):
    directory = write(tmp_path, HYBRID)
    assert (first_expert.kind(directory, draft=False), first_expert.kind(directory, draft=True)) == (
        "hybrid-nvfp4",
        "mxfp4",
    )
    assert first_expert.kind(write(tmp_path / "b", without(HYBRID, "mtp.")), draft=True) is None


@pytest.mark.parametrize("prefix", ["layers.3.", "model.layers.3."])
def test_the_layer_behind_the_last_is_the_nextn_layer(tmp_path, prefix):
    """As DeepSeek-V3's checkpoints name it, and SGLang's NextN loader takes it."""
    found = inspection.read(write(tmp_path, renamed(HYBRID, {"mtp.0.": prefix})))
    assert (found.checkpoint.problems, found.draft_kind, found.draft_problems("EAGLE")) == ((), "mxfp4", [])
    usual = inspection.read(write(tmp_path / "usual", HYBRID)).weights
    assert found.weights == usual
    assert usual.draft_experts > 0


def test_dspark_stages_have_counts_of_their_own(tmp_path):
    stages = {n: e for n, e in DSPARK.items() if not n.startswith("mtp.") or ".experts." not in n}
    stages |= {n: e for n, e in DSPARK.items() if n.startswith("mtp.") and any(f".experts.{i}." in n for i in range(4))}
    directory = write(tmp_path, stages, draft="dspark", sizes={"draft_experts": 4, "draft_top_k": 1})
    assert of(directory, "DSPARK") == ""
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"dspark_n_routed_experts": 0}))
    assert "mtp.0 has 4 routed experts (no expert 4), but config.json's n_routed_experts is 8" in of(
        directory, "DSPARK"
    )
    lost = write(tmp_path / "lost", without(DSPARK, "mtp.2.ffn.experts.1."), draft="dspark")
    assert "mtp.2 has 7 routed experts" in of(lost, "DSPARK")


def test_the_directory_that_the_launch_names(tmp_path):
    bad, good = write(tmp_path / "bad", transcoded("hybrid-nvfp4")), write(tmp_path / "good", HYBRID)
    target = inspection.read(good)

    def problems(model, algorithm="EAGLE", draft=None):
        files = launch_files.of_draft(inspection.read(model), str(model), algorithm, draft and str(draft))
        return files.problems(algorithm, {"draft_format": "applied"})

    assert problems(good, None, bad) == problems(bad, None) == []
    (said,) = problems(good, draft=bad)
    assert said.startswith(f"{bad}: the draft's experts of mtp.0 are NVFP4 (U8)")
    assert problems(bad, draft=good) == []
    (said,) = problems(bad, draft=f"{bad}/")
    assert said.startswith(f"{bad}: ")
    assert problems(good, draft=tmp_path / "a-name-of-a-hub") == []
    shard = sorted(bad.glob("*.safetensors"))[-1]
    shard.write_bytes(shard.read_bytes()[:5000])
    with pytest.raises(inspection.CheckpointError, match=shard.name):
        problems(good, draft=bad)
    lean = write(tmp_path / "lean", without(HYBRID, "mtp.0.ffn"))
    weights = memory.with_draft(inspection.read(lean).weights, target.weights)
    assert weights.draft_experts == target.weights.draft_experts > 0


def test_layers_of_a_vision_tower_are_no_draft(tmp_path):
    tower = {f"vision.layers.{n}.mlp.experts.0.w1.weight": ("BF16", (4, 4)) for n in range(9)}
    found = inspection.read(write(tmp_path, HYBRID | tower))
    assert found.checkpoint.problems == ()
    assert found.weights.draft_rest == inspection.read(write(tmp_path / "b", HYBRID)).weights.draft_rest
    assert found.draft_kind == "mxfp4"
