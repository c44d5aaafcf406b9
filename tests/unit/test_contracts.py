"""Fingerprints change with the code and with nothing else; missing targets are found missing."""

import ast
import textwrap

import pytest

from sglang_sm120 import contracts
from sglang_sm120.contracts import Target


def of(source):
    return contracts.fingerprint(ast.parse(textwrap.dedent(source)).body[0])


BASE = '''
def f(a, b=1):
    """Doc."""
    return a + b  # sum
'''


@pytest.mark.parametrize(
    "same",
    [
        "def f(a, b=1):\n    return a + b",
        "\n\ndef f(\n    a,\n    b=1,\n):\n    '''Other words.'''\n    return (a + b)",
    ],
)
def test_formatting_and_words_do_not_count(same):
    assert of(same) == of(BASE)


@pytest.mark.parametrize(
    "other",
    [
        "def f(a, b=2):\n    return a + b",
        "def f(a, b=1):\n    return a - b",
        "def f(a, b):\n    return a + b",
        "def g(a, b=1):\n    return a + b",
        "async def f(a, b=1):\n    return a + b",
        "@cache\ndef f(a, b=1):\n    return a + b",
        "def f(a, b=1):\n    return a + b if a else 'a'",
    ],
)
def test_code_counts(other):
    assert of(other) != of(BASE)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package whose modules must not be imported."""
    (tmp_path / "fakepkg" / "sub").mkdir(parents=True)
    (tmp_path / "fakepkg" / "__init__.py").write_text("")
    (tmp_path / "fakepkg" / "sub" / "__init__.py").write_text("raise RuntimeError('imported')")
    module = tmp_path / "fakepkg" / "sub" / "mod.py"
    module.write_text("raise RuntimeError('imported')\nclass C:\n    def m(self): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


def test_targets_are_read_without_importing(package):
    target = Target("fakepkg.sub.mod", "C.m", {})
    assert contracts.found_fingerprint(target) == of("def m(self): return 1")
    package.write_text(package.read_text().replace("return 1", "return 2"))
    assert contracts.found_fingerprint(target) == of("def m(self): return 2")


@pytest.mark.parametrize("name", ["fakepkg.sub.gone", "fakepkg.gone.mod", "nosuchpackage.mod"])
def test_a_module_that_is_gone(package, name):
    assert contracts.found_fingerprint(Target(name, "C.m", {})) is None


@pytest.mark.parametrize("name", ["C.gone", "Gone.m", "C.m.deeper"])
def test_a_name_that_is_gone(package, name):
    assert contracts.found_fingerprint(Target("fakepkg.sub.mod", name, {})) is None
