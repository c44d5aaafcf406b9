"""`register()`: fails closed, and does nothing where it has no business."""

import logging
import subprocess
import sys
import types

import pytest

from sglang_sm120 import gpu, plugin
from sglang_sm120.patches import PATCHES
from sglang_sm120.patching import records
from sglang_sm120.patching.records import Status
from sglang_sm120.patching.replace import PatchError

SM120 = gpu.Gpu((12, 0), "RTX", "nvml")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(plugin, "_registered", False)
    monkeypatch.setattr(plugin, "_stopped", None)
    monkeypatch.setattr(records, "STATES", {})
    for variable in ("SGLANG_SM120", "SGLANG_SM120_DISABLE", "SGLANG_SM120_ASSUME"):
        monkeypatch.delenv(variable, raising=False)


def applied(monkeypatch):
    calls = []
    monkeypatch.setattr(records, "apply_all", lambda patches, settings: calls.append(settings))
    return calls


@pytest.mark.parametrize("found", [None, gpu.Gpu((9, 0), "H200", "nvml"), gpu.Gpu((10, 0), "B200", "nvml")])
def test_other_gpus_are_left_alone(monkeypatch, found):
    calls = applied(monkeypatch)
    monkeypatch.setattr(gpu, "detect", lambda assume: found)
    plugin.register()
    assert calls == []
    assert {s.status for s in records.STATES.values()} == {Status.NOT_APPLICABLE}
    assert set(records.STATES) == {p.name for p in PATCHES}


def test_sm120_once(monkeypatch):
    calls = applied(monkeypatch)
    monkeypatch.setattr(gpu, "detect", lambda assume: SM120)
    plugin.register()
    plugin.register()
    assert len(calls) == 1


def test_off_says_so_and_asks_no_gpu(monkeypatch, caplog):
    calls = applied(monkeypatch)
    monkeypatch.setattr(gpu, "detect", lambda assume: pytest.fail("asked"))
    monkeypatch.setenv("SGLANG_SM120", "0")
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert calls == []
    assert "sglang-sm120 is off (SGLANG_SM120=0): stock SGLang" in caplog.text


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PatchError("patch x was not proven"), "sglang-sm120: patch x was not proven"),
        # SGLang's loader swallows an Exception and would go on with stock kernels.
        (OSError("disk"), "OSError: disk; run stock SGLang with SGLANG_SM120=0"),
    ],
)
def test_whatever_goes_wrong_stops_the_launch(monkeypatch, error, says):
    def fail(patches, settings):
        raise error

    monkeypatch.setattr(records, "apply_all", fail)
    monkeypatch.setattr(gpu, "detect", lambda assume: SM120)
    with pytest.raises(SystemExit, match=says):
        plugin.register()


@pytest.fixture
def loader(monkeypatch):
    """What SGLang's `load_plugins` does: once in a process, whatever comes of it."""
    module = types.ModuleType("sglang.srt.plugins")
    module._plugins_loaded = False
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def load():
        if not module._plugins_loaded:
            module._plugins_loaded = True
            plugin.register()

    return load


def test_a_notebooks_second_launch_does_not_run_without_patches(monkeypatch, loader):
    """The first one's SystemExit was caught; the cause is mended, but patches may be half applied."""
    applied(monkeypatch)
    monkeypatch.setattr(gpu, "detect", lambda assume: SM120)
    monkeypatch.setenv("SGLANG_SM120_DISABLE", "gate")
    with pytest.raises(SystemExit, match="SGLANG_SM120_DISABLE names 'gate'"):
        loader()
    monkeypatch.delenv("SGLANG_SM120_DISABLE")
    for _ in range(2):
        with pytest.raises(SystemExit, match=r"DISABLE names 'gate'.*\(an earlier .*; restart the Python process\)$"):
            loader()


def test_a_mixed_machine_is_told_which_gpu_decides(monkeypatch, caplog):
    applied(monkeypatch)
    mixed = gpu.Gpu((7, 5), "T4", "nvml", mixed=True, mixed_with_sm12x=True)
    monkeypatch.setattr(gpu, "detect", lambda assume: mixed)
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert "routing MoE layers for T4 (sm75)" in caplog.text
    assert "CUDA_VISIBLE_DEVICES" in caplog.text


def test_a_bad_setting_stops_the_launch_on_any_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "detect", lambda assume: None)
    monkeypatch.setenv("SGLANG_SM120_DISABLE", "gate")
    with pytest.raises(SystemExit, match=r"SGLANG_SM120_DISABLE names 'gate'.*deepseek_v4_gate"):
        plugin.register()


def test_importing_costs_nothing():
    code = "import sys; before = set(sys.modules); import sglang_sm120; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["sglang_sm120"]


def test_reading_the_records_imports_no_sglang():
    code = (
        "import sys, sglang_sm120.plugin, sglang_sm120.cli;"
        "print(sorted({'torch', 'sglang', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
