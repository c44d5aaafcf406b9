"""What doctor finds before a launch: other plugins on our targets, shadows, and tile tables that no launch uses."""

import json
import sys
from types import SimpleNamespace

import pytest

from sglang_sm120.commands.doctor import command as doctor
from sglang_sm120.commands.doctor import conflicts
from sglang_sm120.commands.tune import tables
from sglang_sm120.kernels.sm120 import tile_tables
from sglang_sm120.kernels.sm120.tile_tables import Machine
from sglang_sm120.patches import PATCHES

TARGET = next(t for p in PATCHES for t in p.targets if "." in t.qualname)
OWNER, _, LAST = TARGET.qualname.rpartition(".")
PATCH = next(p.name for p in PATCHES if TARGET in p.targets)
HERE = Machine("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188, "3.8.0")


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    """source -> an installed plugin `rival` that loads before ours; it fails if it is imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)

    def install(source):
        package = tmp_path / "rival_overlay"
        package.mkdir()
        (package / "__init__.py").write_text("raise SystemExit('imported')\n")
        (package / "hooks.py").write_text(source)
        points = [
            SimpleNamespace(name="rival", module="rival_overlay.hooks", dist=SimpleNamespace(name="rival-dist")),
            SimpleNamespace(name="sm120", module="sglang_sm120.plugin", dist=SimpleNamespace(name="sglang-sm120")),
        ]
        monkeypatch.setattr(conflicts, "entry_points", lambda group: points)

    yield install
    sys.modules.pop("rival_overlay", None)


REPLACING = {
    "a hook by its path": f"from sglang.srt.plugins import hook_registry\nregister({str(TARGET)!r}, f)\n",
    "a hook on the class": f"# {LAST}\nregister('{TARGET.module}.{OWNER}', f)  # sglang\n",
    "an assignment": f"from {TARGET.module} import {OWNER}\n\n{OWNER}.{LAST} = lambda *a: None\n",
    "setattr": f"from {TARGET.module} import {OWNER}\nsetattr({OWNER}, {LAST!r}, None)\n",
}


@pytest.mark.parametrize("how", REPLACING)
def test_a_plugin_that_replaces_our_target_is_named_before_a_launch(plugin, how):
    plugin(REPLACING[how])
    found = conflicts.other_plugins(PATCHES)
    warning = found.warnings[0]
    assert "plugin rival (rival-dist), which loads before sm120, replaces " in warning
    assert f"{TARGET} in rival_overlay/hooks.py:" in warning
    assert PATCH in warning
    assert "SGLANG_PLUGINS=sm120 leaves rival out" in found.hints[0]
    assert f"SGLANG_SM120_DISABLE={PATCH}" in " ".join(found.hints)
    assert found.rows[0]["replaces"][0]["line"] > 0


INNOCENT = {
    "a call": f"from {TARGET.module} import {OWNER}\n{OWNER}.{LAST}(1)\n",
    "its own attribute": f"from {TARGET.module} import {OWNER}\n\ndef f(self):\n    self.{LAST} = 1\n",
    "something else": "import sglang\n",
    "no Python": "sglang {{{\n",
}


@pytest.mark.parametrize("how", INNOCENT)
def test_a_plugin_that_does_not_is_listed(plugin, how):
    plugin(INNOCENT[how])
    found = conflicts.other_plugins(PATCHES)
    assert found.warnings == []
    assert found.rows[0]["says"] == "loads before sm120; its source replaces nothing that the overlay touches"


def test_a_plugin_that_sglang_does_not_load(plugin, monkeypatch):
    plugin(REPLACING["setattr"])
    monkeypatch.setenv("SGLANG_PLUGINS", "sm120")
    assert conflicts.other_plugins(PATCHES).rows == []


def test_the_installed_plugins_are_no_conflict():
    """SGLang itself brings some; a warning about these would be one for every user."""
    assert conflicts.other_plugins(PATCHES).warnings == []


@pytest.fixture
def written(monkeypatch, tmp_path):
    """machine -> its table in the home."""
    monkeypatch.setenv("SGLANG_SM120_HOME", str(tmp_path / "home"))

    def write(machine, **changes):
        path = tile_tables.path_for(machine)
        tables.write(path, tile_tables.Table(machine))
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return path

    return write


def test_the_table_of_this_machine_is_used(written):
    written(HERE)
    found = conflicts.tables(HERE)
    assert [(r["used"], r["problem"]) for r in found.rows] == [(True, None)]
    assert found.warnings == []


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (Machine(HERE.gpu, HERE.sms, "3.7.1"), "it is for triton '3.7.1', this is '3.8.0'"),
        (Machine(HERE.gpu, 94, HERE.triton), "it is for sms 94, this is 188"),
    ],
)
def test_a_table_that_a_change_of_this_machine_left_behind_is_a_warning(written, other, says):
    written(other)
    found = conflicts.tables(HERE)
    assert says in found.warnings[0]
    assert "sglang-sm120 tune" in found.hints[0]
    assert not found.rows[0]["used"]


def test_a_copied_table_and_a_broken_one_are_warnings(written):
    path = written(HERE, gpu="NVIDIA H200")
    assert "it is for gpu 'NVIDIA H200'" in conflicts.tables(HERE).warnings[0]
    path.write_text("{")
    assert "not JSON" in conflicts.tables(HERE).warnings[0]


def test_a_table_of_another_gpu_is_listed_and_no_warning(written):
    written(Machine("NVIDIA H200", 132, "3.8.0"))
    for here in (HERE, None):
        found = conflicts.tables(here)
        assert found.warnings == []
        assert "NVIDIA H200" in found.rows[0]["problem"]


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null", "/dev/null/below"])
def test_a_home_that_holds_nothing(monkeypatch, home):
    monkeypatch.setenv("SGLANG_SM120_HOME", home)
    assert conflicts.tables(HERE).rows == []


@pytest.mark.parametrize("name", ["sglang", "kernels"])
def test_shadows(monkeypatch, tmp_path, name):
    (tmp_path / name / "srt").mkdir(parents=True)  # another SGLang, which works
    (tmp_path / name / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert f"{name} can shadow the installed {name}" in conflicts.shadows().warnings[0]
    monkeypatch.chdir("/")
    assert conflicts.shadows().warnings == []
    monkeypatch.syspath_prepend(str(tmp_path))
    assert f"{name} shadows the installed {name}" in conflicts.shadows().warnings[0]
    assert conflicts.shadows().errors == []


def test_what_shadows_sglang_and_is_none_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    (error,) = conflicts.shadows().errors
    assert error.startswith(f"{tmp_path / 'sglang'} shadows the installed sglang")
    assert error.endswith("start SGLang from another directory")
    monkeypatch.chdir("/")
    monkeypatch.syspath_prepend(str(tmp_path))
    (error,) = conflicts.shadows().errors
    assert "take it out of PYTHONPATH" in error
    assert conflicts.shadows().warnings == []


def test_started_from_a_shadowing_folder_it_is_still_told(monkeypatch, tmp_path):
    """`python -m` puts the working directory first, so that an import already takes the shadow."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "kernels" in conflicts.shadows().warnings[0]


def test_doctor_has_all_of_it_in_its_document_and_its_text(plugin, written, monkeypatch):
    plugin(REPLACING["an assignment"])
    written(Machine("NVIDIA H200", 132, "3.8.0"))
    document = json.loads(json.dumps(doctor.examine()))
    assert document["other_plugins"][0]["name"] == "rival"
    assert document["tables"][0]["used"] is False
    text = doctor.render(document, with_hints=True)
    assert "warning plugin rival (rival-dist)" in text
    assert "tiles   " in text
    assert "hint    keep one of the two" in text
