"""The plugin of the end-to-end runs, found by SGLang's way of finding plugins, and pytest's `-p`."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from sglang_sm120.commands.selftest.sm120_code import compiling
from sglang_sm120.kernels.sm120 import fp4_moe

PLUGIN = Path(__file__).resolve().parents[2] / "benchmarks" / "e2e" / "sm120_code_plugin"


@pytest.fixture
def plugin(monkeypatch):
    monkeypatch.syspath_prepend(str(PLUGIN))
    (found,) = distributions(path=[str(PLUGIN)])
    (entry,) = found.entry_points
    assert entry.group == "sglang.srt.plugins"
    monkeypatch.setattr(fp4_moe, "warm_up", lambda *args: args)
    yield entry.load()
    sys.modules.pop("e2e_sm120_code", None)


@pytest.fixture
def entered(monkeypatch):
    seen = []
    monkeypatch.setattr(compiling.Sm120Code, "__enter__", lambda self: seen.append((self.arch, self.sms, self.cache)))
    return seen


def test_it_is_in_place_before_the_first_warm_up_and_once(plugin, entered, monkeypatch, tmp_path):
    monkeypatch.setenv("E2E_SM120_CODE", "sm_121a:48")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    plugin()
    assert entered == []
    assert fp4_moe.warm_up(1, 2) == (1, 2)
    fp4_moe.warm_up(1)
    assert entered == [("sm_121a", 48, tmp_path / f"sm120-code-sm_121a-{compiling.sources_digest()}")]


def test_without_its_variable_it_does_nothing(plugin, entered, monkeypatch):
    monkeypatch.delenv("E2E_SM120_CODE", raising=False)
    before = fp4_moe.warm_up
    plugin()
    assert fp4_moe.warm_up is before


@pytest.mark.parametrize("words", ["sm_120a", "188", "sm_120a:many"])
def test_bad_words_are_named(plugin, entered, monkeypatch, words):
    monkeypatch.setenv("E2E_SM120_CODE", words)
    plugin()
    with pytest.raises(ValueError, match=f"E2E_SM120_CODE is '{words}'"):
        fp4_moe.warm_up()
