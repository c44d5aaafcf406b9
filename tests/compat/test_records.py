"""The tables of the patch records, and the parts of patching that old releases need."""

import sys

import pytest

from sglang_sm120.patches import PATCHES
from sglang_sm120.patching import replace
from sglang_sm120.patching.records import Status
from sglang_sm120.patching.replace import PatchError
from sglang_sm120.upstream import contracts, releases


def test_spans_hold_until_the_next_change():
    table = releases.spans({"0.5.15": "a", "0.5.18": "b", "0.5.21": None})
    assert table == {"0.5.15": "a", "0.5.15.post1": "a", "0.5.16": "a", "0.5.17": "a"} | dict.fromkeys(
        releases.span("0.5.18", "0.5.20"), "b"
    )
    assert releases.runs(table) == [("0.5.15 to 0.5.17", "a"), ("0.5.18 to 0.5.20", "b")]


def test_a_gap_ends_a_run():
    assert releases.runs({"0.5.14": 1, "0.5.16": 1}) == [("0.5.14", 1), ("0.5.16", 1)]


def test_a_table_may_not_name_a_release_that_nobody_proved():
    with pytest.raises(ValueError, match=r"0\.5\.99"):
        releases.spans({"0.5.99": "a"})


@pytest.mark.parametrize("patch", PATCHES, ids=lambda p: p.name)
def test_every_patch_is_watched_in_every_release_that_it_acts_in(patch):
    for release in patch.proven_on:
        assert any(release in target.fingerprints for target in patch.targets), release
    assert patch.elsewhere[0] in (Status.NOT_NEEDED, Status.NOT_APPLICABLE)


@pytest.mark.parametrize("release", releases.PROVEN)
def test_the_fingerprints_are_those_of_the_releases(release, release_tree, monkeypatch):
    """Read from each unpacked release; a target that a record leaves out in a release is none of its business there."""
    tree = release_tree(release)

    def source(module):
        path = tree.joinpath(*module.split("."))
        return next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)

    monkeypatch.setattr(contracts, "source_file", source)
    wrong = [d for p in PATCHES for t in p.targets if (d := t.difference(release)) is not None]
    assert wrong == []


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "upstream_functions.py").write_text("from os.path import join\n\n\ndef f(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import upstream_functions

    yield upstream_functions
    sys.modules.pop("upstream_functions", None)


def test_a_function_is_replaced_once(module):
    for _ in range(2):
        replace.replace(module, "f", "example", lambda original: lambda x: original(x) + 1)
    assert module.f(1) == 2


@pytest.mark.parametrize("name", ["join", "missing"])
def test_a_function_of_somebody_else_is_not_replaced(module, name):
    with pytest.raises(PatchError, match=f"example: upstream_functions.{name} has already been replaced"):
        replace.replace(module, name, "example", lambda original: original)
