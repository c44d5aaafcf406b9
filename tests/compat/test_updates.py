"""Weights that are written while the server runs, through each release's own updaters: bytes, addresses, refusals.

A step is right if what a CUDA graph captured before the first step reads holds the bytes of the checkpoint written
last. What SGLang calls in which release is in docs/UPDATES.md.
"""

import ast
import json
from dataclasses import replace

import pytest

from scripts.checkpoints import tiny
from sglang_sm120.upstream import definitions, releases, update_paths

# The first of each form of SGLang's updaters; `integration/test_updates.py` has the environment's release.
ERAS = ["0.5.14", "0.5.16", "0.5.17", "0.5.20", "0.5.21", "0.5.22"]
STEPS = ["disk", "disk again", "tensor", "bucket", "direct", "custom", "pieces", "distributed", "half"]
STEPS += ["whole after half", "ipc", "repaired"]
RUNS = {"real": [], "dummy": ["--load-format", "dummy"], "released": ["--enable-memory-saver"]}


@pytest.fixture(scope="module")
def answers(ask, side_by_side, release_tree, tmp_path_factory):
    """release -> run -> step -> what became of it."""
    root = tmp_path_factory.mktemp("models")
    first, second = (str(tiny.write(root / str(seed), replace(tiny.SHAPE, seed=seed))) for seed in (0, 1))
    about = {"first": first, "second": second, "tp": 1}
    asked = json.dumps({name: about | {"flags": flags} for name, flags in RUNS.items()})
    for release in ERAS:
        release_tree(release)

    def probe(release):
        return {name: ranks[0] for name, ranks in ask("update_probe.py", stdin=asked, release=release).items()}

    return dict(zip(ERAS, side_by_side([(probe, release) for release in ERAS]), strict=True))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("release", ERAS)
def test_graphs_read_what_was_written_last(answers, release, run, step):
    found = answers[release][run]
    assert "error" not in found, found["error"]
    assert found[step] == {"refused": None, "answer": found[step]["answer"], "different": 0, "moved": []}
    assert found[step]["answer"][0] is True


@pytest.mark.parametrize("release", ERAS)
def test_weights_that_were_released(answers, release):
    """Any bytes come back; an update in several requests is right although the first ones find them."""
    assert answers[release]["released"]["resumed"]["refused"] is None
    assert answers[release]["released"]["resumed"]["different"] == 0


@pytest.mark.parametrize("release", ERAS)
def test_scales_that_graphs_were_not_captured_for(answers, release):
    """checkpoint-engine's post-hook swallows the refusal, and the answer would be success."""
    refused = answers[release]["real"]["out of range"]["refused"]
    assert "CUDA graphs were captured with the kernel for weights with scales inside" in refused
    assert "restart the server on the new checkpoint, or with --load-format dummy" in refused
    assert answers[release]["dummy"]["out of range"]["refused"] is None


@pytest.mark.parametrize("release", [*ERAS, releases.PROVEN[-1]])
def test_every_load_format_was_looked_at(release_tree, release):
    source = (release_tree(release) / "sglang/srt/configs/load_config.py").read_text()
    found = definitions.find(source, "LoadFormat")
    formats = {
        n.value.value for n in ast.walk(found) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)
    }
    assert {"auto", "dummy", "sharded_state"} <= formats
    assert formats - update_paths.LOAD_FORMATS.keys() == set()


def test_the_table_names_every_release_for_every_path():
    assert set(ERAS) <= set(releases.PROVEN)
    for path in update_paths.PATHS:
        assert path.ours.keys() == path.calls.keys(), path.name
        begins_later = path.name.startswith("P2P")
        assert tuple(path.calls) == releases.span("0.5.21" if begins_later else "0.5.14"), path.name
