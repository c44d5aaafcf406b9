"""Ranks that compare what they run, over one of torch's stores."""

import logging
import threading
import time
from types import SimpleNamespace

import pytest

from sglang_sm120.patching import ranks_agree

torch = pytest.importorskip("torch")
MINE = {"sglang-sm120": "0.1.0", "SGLang": "0.5.23", "SGLANG_SM120_ACTIVATION": "bf16", "patch a": "applied"}


@pytest.fixture
def store():
    return torch.distributed.HashStore()


def ask(store, lines, group=None):
    """Rank -> what it is told, each in a thread of its own; `lines` is rank -> what it runs."""
    told = {}

    def one(rank, mine):
        told[rank] = ranks_agree.compare(store, rank, [r for r in group or lines if r != rank], mine)

    threads = [threading.Thread(target=one, args=line) for line in lines.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_the_same_everywhere(store):
    assert ask(store, dict.fromkeys(range(4), MINE)) == dict.fromkeys(range(4))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"SGLANG_SM120_ACTIVATION": "mxfp8"}, "SGLANG_SM120_ACTIVATION is bf16 on rank 0 and mxfp8 on rank 1; make"),
        ({"sglang-sm120": "0.2.0"}, "sglang-sm120 is 0.1.0 on rank 0 and 0.2.0 on rank 1; make"),
        ({"patch a": "not applicable"}, "patch a is applied on rank 0 and not applicable on rank 1; make"),
        ({"patch b": "applied"}, "patch b is unknown on rank 0 and applied on rank 1; make"),
    ],
)
def test_what_differs_is_named_on_both_sides(store, changed, says):
    told = ask(store, {0: MINE, 1: MINE | changed})
    assert told[0].startswith(says)
    assert told[1] is not None


def test_a_rank_that_never_answers_is_named_when_the_time_is_up(store, monkeypatch, caplog):
    monkeypatch.setattr(ranks_agree, "WAIT_S", 0.4)
    monkeypatch.setattr(ranks_agree, "PATIENCE_S", 0.1)
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING, "sglang_sm120"):
        told = ask(store, {0: MINE, 2: MINE}, group=[0, 1, 2, 3])
    assert time.monotonic() - begun < 5
    assert all(said.startswith("rank 1, 3 did not say within 0 s which overlay it runs: ") for said in told.values())
    assert "it may have ended (see its log), or its host has none; there install sglang-sm120" in told[0]
    assert "SGLANG_SM120=0 on every host" in told[0]
    assert "waiting for rank 1, 3" in caplog.text


def test_ranks_outside_the_group_are_not_waited_for(store):
    """A trainer's world may hold several models, and processes without one."""
    assert ask(store, {4: MINE, 5: MINE}, group=[4, 5]) == {4: None, 5: None}


def test_settings_and_patches_are_what_is_compared(monkeypatch):
    monkeypatch.setenv("SGLANG_SM120_ACTIVATION", "mxfp8")
    monkeypatch.delenv("SGLANG_SM120_DRAFT_MOE", raising=False)
    monkeypatch.setattr(ranks_agree.records, "STATES", {})
    ranks_agree.records.set_all([type("P", (), {"name": "a"})], ranks_agree.records.Status.APPLIED, "because")
    found = ranks_agree.facts()
    assert (found["SGLANG_SM120_ACTIVATION"], found["SGLANG_SM120_DRAFT_MOE"]) == ("mxfp8", "auto")
    assert found["patch a"] == "applied"


def test_builds_of_one_release_for_two_cuda_versions_agree(store, monkeypatch):
    """Patches take them for the same, and hosts may have other drivers."""
    lines = {}
    for rank, version in enumerate(("0.5.23", "0.5.23+cu130", "0.5.22")):
        monkeypatch.setattr(ranks_agree.releases, "installed", lambda version=version: version)
        lines[rank] = ranks_agree.facts()
    assert ask(store, {0: lines[0], 1: lines[1]}) == {0: None, 1: None}
    assert ask(store, {0: lines[0], 2: lines[2]})[0].startswith("SGLang is 0.5.23 on rank 0 and 0.5.22 on rank 2")


@pytest.mark.sglang
def test_a_rank_alone_asks_nobody(monkeypatch):
    """Nor does it touch the store, which may be a file that is gone."""
    from sglang.srt import distributed

    monkeypatch.setattr(ranks_agree, "_asked", False)
    monkeypatch.setattr(distributed, "model_parallel_is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_tp_group", lambda: SimpleNamespace(ranks=[0]))
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: pytest.fail("asked"))
    ranks_agree.require()
