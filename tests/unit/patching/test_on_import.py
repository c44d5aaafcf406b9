"""Actions that wait for an import, beside the loaders and finders that other packages bring."""

import importlib.util
import sys
import zipfile
from importlib.machinery import SourceFileLoader

import pytest

from sglang_sm120.patching import on_import
from sglang_sm120.patching.replace import PatchError


@pytest.fixture
def seen(monkeypatch):
    """What actions saw; modules and waiting actions are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(on_import, "_FINDER", on_import._Finder())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield []
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a module where imports find it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, text="value = 1\n"):
        (tmp_path / f"{name}.py").write_text(text)

    return write


def test_an_action_waits_for_the_import_and_runs_once(written, seen):
    written("late")
    assert on_import.when_imported("late", lambda m: seen.append(m.value)) is False
    import late

    assert seen == [1]
    assert on_import.when_imported("late", lambda m: seen.append(m.value)) is True
    assert seen == [1, 1]
    importlib.reload(late)
    assert seen == [1, 1]


def test_the_module_has_its_own_loader_as_without_us(written, seen):
    """What packages do with it: sources for tracebacks, resources, type checks."""
    written("late")
    on_import.when_imported("late", seen.append)
    import late

    assert type(late.__spec__.loader) is type(late.__loader__) is SourceFileLoader
    assert late.__spec__.loader.get_source("late") == "value = 1\n"


def test_an_action_that_fails_ends_the_process_whoever_imports(written, seen):
    """SGLang's model registry goes on after an Exception of an import; it must not after ours, nor the second time."""
    written("late")

    def refuse(_module):
        raise PatchError("does not fit")

    on_import.when_imported("late", refuse)
    for _ in range(2):
        with pytest.raises(SystemExit, match="sglang-sm120: does not fit"):
            import late  # noqa: F401
        assert "late" not in sys.modules


class Legacy:
    """A finder of before Python 3.4, as pyximport of Cython 0.29 installs one: imports pass over it."""

    def find_module(self, name, path=None):
        return None


def test_a_finder_without_find_spec_is_passed_over(written, seen, monkeypatch):
    written("late")
    monkeypatch.setattr(sys, "meta_path", [Legacy(), *sys.meta_path])
    on_import.when_imported("late", lambda m: seen.append(m.value))
    import late  # noqa: F401

    assert seen == [1]


@pytest.fixture
def zipped(tmp_path, monkeypatch):
    """Modules `first`, which fails without MAY=1, and `second` in a zip file: one loader for both."""
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        archive.writestr("first.py", "import os\nif not os.environ.get('MAY'): raise RuntimeError('not yet')\n")
        archive.writestr("second.py", "")
    monkeypatch.syspath_prepend(str(tmp_path / "both.zip"))
    monkeypatch.delenv("MAY", raising=False)


def test_modules_of_one_loader_keep_their_actions_apart(zipped, monkeypatch, seen):
    """The first import of one fails, then another is imported."""
    on_import.when_imported("first", lambda m: seen.append(m.__name__))
    with pytest.raises(RuntimeError, match="not yet"):
        import first
    import second  # noqa: F401

    assert seen == []
    monkeypatch.setenv("MAY", "1")
    import first  # noqa: F401

    assert seen == ["first"]


def test_a_loader_that_is_used_for_another_module_runs_nothing(zipped, monkeypatch, seen):
    on_import.when_imported("first", lambda m: seen.append(m.__name__))
    loader = importlib.util.find_spec("first").loader
    other = importlib.util.module_from_spec(importlib.util.spec_from_loader("second", loader))
    loader.exec_module(other)
    assert other.__loader__.archive.endswith("both.zip")
    assert seen == []


def test_a_module_that_replaces_itself_is_what_the_action_gets(written, seen):
    written("late", "import sys, types\nsys.modules[__name__] = types.SimpleNamespace(value=2)\n")
    on_import.when_imported("late", lambda m: seen.append(m.value))
    import late

    assert seen == [late.value] == [2]


@pytest.mark.filterwarnings("ignore::ImportWarning", "ignore::DeprecationWarning")
def test_a_loader_that_only_has_load_module(seen, monkeypatch):
    class Old:
        def find_spec(self, name, path, target=None):
            return importlib.util.spec_from_loader(name, self) if name == "late" else None

        def load_module(self, name):
            module = sys.modules.setdefault(name, type(sys)(name))
            module.value = 3
            return module

    monkeypatch.setattr(sys, "meta_path", [Old(), *sys.meta_path])
    on_import.when_imported("late", lambda m: seen.append(m.value))
    import late  # noqa: F401

    assert seen == [3]
