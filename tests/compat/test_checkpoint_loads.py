"""Checkpoints of `scripts/checkpoints/make.py` in SGLang's models: each tensor has a place and each place a tensor."""

import json
from dataclasses import replace

import pytest

from scripts.checkpoints import make
from sglang_sm120.upstream import server_flags

RELEASES = ["0.5.16", "0.5.17", "0.5.23"]  # the first with DSpark, the one of the end-to-end runs, the newest
EAGLE = server_flags.eagle()
FLAGS = {"nextn": EAGLE, "dspark": ["--speculative-algorithm", "DSPARK"]}
CLASSES = {"nextn": "DeepseekV4ForCausalLMNextN", "dspark": "DeepseekV4ForCausalLMDSpark"}
# Kind, draft, and the draft's format where it is not the usual one.
NAMES = [f"{kind} {draft}" for kind in make.KINDS for draft in make.DRAFTS]
NAMES += ["fp8 nextn mxfp4", "fp8 dspark mxfp4", "mxfp4 nextn fp8"]
# What no checkpoint holds: scales of a quantized cache, NVFP4 scales in a kernel's order (made of the loaded ones), and
# the two matrices that a NextN draft shares with its target.
NEVER = ("k_scale", "v_scale", "_blockscale_swizzled"), ("lm_head.weight", "model.embed_tokens.weight")


@pytest.fixture(scope="module")
def loads(ask, side_by_side, release_tree, tmp_path_factory):
    """release -> checkpoint -> role -> findings."""
    root, asked = tmp_path_factory.mktemp("models"), []
    for name in NAMES:
        kind, draft, *own = name.split()
        shape = replace(make.SMALL, kind=kind, draft=draft, draft_format="".join(own))
        asked.append([name, str(make.write(root / name.replace(" ", "-"), shape)), FLAGS[draft]])
    for release in RELEASES:
        release_tree(release)
    # The mode that uses the confidence head of a DSpark draft; in SGLang's default one the head is left out.
    mode = {"SGLANG_RAGGED_VERIFY_MODE": "compact"}

    def probe(release):
        return ask("load_probe.py", stdin=json.dumps(asked), release=release, **mode)

    return dict(zip(RELEASES, side_by_side([(probe, release) for release in RELEASES]), strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("release", RELEASES)
def test_the_target_takes_every_tensor(loads, release, name):
    found = loads[release][name]["target"]
    assert found["model"] == "DeepseekV4ForCausalLM"
    assert [n for n in found["not filled"] if not n.endswith(NEVER[0])] == []
    assert found["filled numbers"] == found["numbers"]
    assert found["warnings"] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("release", RELEASES)
def test_the_draft_takes_every_tensor(loads, release, name):
    found = loads[release][name]["draft"]
    assert found["model"] == CLASSES[name.split()[1]]
    assert [n for n in found["not filled"] if not n.endswith(NEVER[0]) and n not in NEVER[1]] == []
    assert found["filled numbers"] == found["numbers"]
    assert found["warnings"] == []
