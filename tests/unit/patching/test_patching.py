"""Applying patches: contracts, foreign replacements, order and states."""

import dataclasses
import sys

import pytest

from sglang_sm120.patching import records, replace
from sglang_sm120.patching.records import Patch, Status
from sglang_sm120.patching.replace import PatchError
from sglang_sm120.settings import Settings
from sglang_sm120.upstream import contracts, releases
from sglang_sm120.upstream.contracts import Target

SOURCE = "class C:\n    def m(self):\n        return 'stock'\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "upstream.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(releases, "installed", lambda: releases.PROVEN[-1])
    monkeypatch.setattr(records, "STATES", {})
    monkeypatch.setattr(contracts, "source_file", lambda name: tmp_path / f"{name}.py")
    import upstream

    yield upstream
    sys.modules.pop("upstream", None)


def patch(install, fingerprint=None):
    target = Target("upstream", "C.m", {})
    target = dataclasses.replace(
        target, fingerprints={releases.PROVEN[-1]: fingerprint or contracts.found_fingerprint(target)}
    )
    text = dict.fromkeys(("summary", "symptom", "why", "binding", "untouched", "remove_when"), "…")
    return Patch(name="example", targets=(target,), install=install, **text)


def installs(module):
    def install(_settings):
        replace.replace(module.C, "m", "example", lambda original: lambda self: "ours+" + original(self))
        return "C.m"

    return install


def test_applied_reaches_instances_that_exist(module):
    instance = module.C()
    records.apply_all([patch(installs(module))], Settings())
    assert instance.m() == "ours+stock"
    assert records.STATES["example"] == records.State("example", Status.APPLIED, "C.m")


def test_twice_is_once(module):
    for _ in range(2):
        records.apply_all([patch(installs(module))], Settings())
    assert module.C().m() == "ours+stock"


def test_disabled_changes_nothing(module):
    before = module.C.__dict__["m"]
    records.apply_all([patch(installs(module))], Settings(disabled=frozenset({"example"})))
    assert module.C.__dict__["m"] is before
    assert records.STATES["example"].status == Status.NOT_APPLICABLE


def test_changed_source_stops_and_names_both_remedies(module):
    with pytest.raises(PatchError) as caught:
        records.apply_all([patch(installs(module), fingerprint="0" * 12)], Settings())
    said = str(caught.value)
    for part in (
        "example",
        releases.PROVEN[-1],
        "upstream.C.m",
        "0" * 12,
        "SGLANG_SM120=0",
        "SGLANG_SM120_ACCEPT_DRIFT=1",
    ):
        assert part in said
    assert module.C().m() == "stock"
    assert records.STATES["example"].status == Status.FAILED


def test_accepted_drift_applies(module):
    records.apply_all([patch(installs(module), fingerprint="0" * 12)], Settings(accept_drift=True))
    assert module.C().m() == "ours+stock"


def test_an_unknown_release_stops_although_the_source_is_known(module, monkeypatch):
    monkeypatch.setattr(releases, "installed", lambda: "9.9.9")
    with pytest.raises(PatchError, match=r"9\.9\.9 is not among the proven releases"):
        records.apply_all([patch(installs(module))], Settings())


def test_a_local_build_of_a_proven_release_is_proven(module, monkeypatch):
    monkeypatch.setattr(releases, "installed", lambda: releases.PROVEN[-1] + "+cu130")
    records.apply_all([patch(installs(module))], Settings())


def test_a_target_that_is_gone(module):
    gone = dataclasses.replace(
        patch(installs(module)), targets=(Target("upstream", "C.gone", {releases.PROVEN[-1]: "1" * 12}),)
    )
    with pytest.raises(PatchError, match=r"upstream\.C\.gone is gone"):
        records.apply_all([gone], Settings())


def foreign(self):
    return "theirs"


def wrapped(original):
    from functools import wraps

    @wraps(original)
    def theirs(self):
        return original(self)

    return theirs


@pytest.mark.parametrize("theirs", [lambda original: foreign, wrapped, lambda original: object()])
def test_a_second_overlay_on_the_same_target_is_named(module, theirs):
    module.C.m = theirs(module.C.__dict__["m"])
    with pytest.raises(PatchError, match=r"upstream\.C\.m has already been replaced by .*SGLANG_SM120_DISABLE=example"):
        records.apply_all([patch(installs(module))], Settings())
