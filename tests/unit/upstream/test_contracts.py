"""Fingerprints change with the code and with nothing else; missing targets are found missing."""

import ast
import textwrap

import pytest

from sglang_sm120.upstream import contracts, definitions
from sglang_sm120.upstream.contracts import Target


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


LAYOUTS = r'''
"""A text with
def f(): no code
and \""" in it"""

TEXT = r"""
class C:
    def m(self): no code
"""  # a comment with "quotes
call(
"""
def f(): in a bracket
""",
)
if call:

    def f():
        return "inside a statement"


async def f(
    a=")",
    b="""
def g(): no code
""",
):
    return [
a,
    ]


@first(
    "x"
)
# between

@second
class C(
    Base,
):
    """Says
    def m(self): no code
    """

    value = 1 \
+ 2

    class Inner:
        def m(self):
            def n(): return 3
            return n

    def m(self): return 1  # the first

    @property
    def m(self):

# a comment that is not indented
        x = """
text that is not indented
"""
        return x


    def last(self): return 'no # comment'
AFTER = """
def f(): no code
class C: no code
def one(): no code
"""
def one(): return 1
def two(): return 2'''


@pytest.mark.parametrize("name", ["f", "C", "C.Inner", "C.Inner.m", "C.m", "C.last", "one", "two"])
@pytest.mark.parametrize("indent", ["    ", "\t"])
def test_a_definition_is_found_and_parsed_alone(name, indent, monkeypatch):
    """In every layout that hides where it begins or ends, what is found is what parsing the whole file finds."""
    text = LAYOUTS.replace("    ", indent)
    expected = definitions._walk(ast.parse(text), name.split("."))
    monkeypatch.setattr(definitions, "_walk", lambda *_: pytest.fail("parsed the whole file"))
    found = definitions.find(text, name)
    assert ast.dump(found) == ast.dump(expected)


@pytest.mark.parametrize("name", ["g", "n", "C.n", "Inner", "C.f", "f.C", "TEXT", "nowhere"])
def test_what_is_not_defined_at_that_place_is_not_found(name):
    assert definitions.find(LAYOUTS, name) is None


@pytest.mark.parametrize("seen", [None, "def g(): pass\n", "def f(:\n", "x = 1\n", "def f(): pass\nx = 1\n", "  f()\n"])
def test_where_the_lines_mislead_the_whole_file_decides(seen, monkeypatch):
    """Python 3.12 lets an f-string hold its own quotes, which older rules misread."""
    monkeypatch.setattr(definitions, "_locate", lambda *_: seen)
    text = "x = 1\ndef f():\n    return 1\n"
    assert ast.dump(definitions.find(text, "f")) == ast.dump(ast.parse(text).body[1])


def test_a_file_that_is_not_python_is_an_error():
    with pytest.raises(SyntaxError):
        definitions.find("def f(:\n    return 1\n", "f")
