"""One definition out of a source file, parsed alone.

Parsing a whole file of SGLang to look at one method costs a hundred times what the method costs, in every process that
SGLang starts; in one that has imported torch, the many new objects also set off collections of everything else. So the
lines of the definition are found first, from the layout that Python itself prescribes: strings, comments, brackets and
backslashes say where a logical line begins, and indentation says what belongs to what. What is found is parsed and
must be one definition of that name; otherwise the whole file is parsed and decides.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from functools import lru_cache

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

# What decides whether a line break ends a logical line. Strings come whole, prefixes stay outside; `\"` is no end of a
# raw string either. A pair of brackets that holds nothing of interest is passed over in one step.
_TOKEN = re.compile(
    r'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'
    r"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'"
    r"|#[^\n]*|\\\n|\([^()\[\]{}\"'#\\]*\)|[(\[{]|[)\]}]|\n",
    re.DOTALL,
)
_INDENTATION_OF_CODE = re.compile(r"[ \t]*(?=[^\s#])")
_DECORATOR = re.compile(r"[ \t]*@")


def find(text: str, qualname: str) -> Definition | None:
    """The definition that a path such as `Class.method` names in the text of a module; None if there is none.

    As at run time, the last of several definitions counts. Definitions inside other statements do not.

    Raises:
        SyntaxError: the text is not Python.
    """
    parts = qualname.split(".")
    if not all(re.search(rf"\b(?:def|class)\s+{re.escape(part)}\b", text) for part in parts):
        return None
    lines = _locate(text, parts)
    found = None if lines is None else _parse_alone(lines, parts[-1])
    return found or _walk(ast.parse(text), parts)


def _walk(node: ast.Module | Definition, parts: list[str]) -> Definition | None:
    for part in parts:
        named = [n for n in node.body if isinstance(n, Definition) and n.name == part]
        if not named:
            return None
        node = named[-1]
    return node if isinstance(node, Definition) else None


def _locate(text: str, parts: list[str]) -> str | None:
    """The lines of the definition with its decorators; None if they do not show."""
    starts = _logical_lines(text)
    first, end, indent = 0, len(starts), ""
    for depth, part in enumerate(parts):
        if depth:
            inside = (_indentation(text, starts[line]) for line in range(first + 1, end))
            indent = next((i for i in inside if i is not None), "")
        line = _last_definition(text, starts, (first, end), indent, part)
        if line is None:
            return None
        first, end = line, _end(text, starts, line, end)
    stop = starts[end] if end < len(starts) else len(text)
    return text[starts[_with_decorators(text, starts, first)] : stop]


@lru_cache(maxsize=8)
def _logical_lines(text: str) -> list[int]:
    """Where the logical lines begin, blank ones and comments included."""
    starts, depth = [0], 0
    for token in _TOKEN.finditer(text):
        at = token.start()
        kind = text[at]
        if kind == "\n":
            if depth == 0:
                starts.append(at + 1)
        elif kind in "([{":
            depth += token.end() == at + 1
        elif kind in ")]}":
            depth -= 1
    return starts


def _indentation(text: str, start: int) -> str | None:
    """Blanks before the code of a line; None for a blank line or a comment."""
    match = _INDENTATION_OF_CODE.match(text, start)
    return match and match[0]


def _last_definition(text: str, starts: list[int], within: tuple[int, int], indent: str, name: str) -> int | None:
    """Number of the logical line, of those within, that begins the last definition of the name at an indentation."""
    first, end = within
    stop = starts[end] if end < len(starts) else len(text)
    head = re.compile(rf"^{indent}(?:async[ \t]+def|def|class)[ \t]+{re.escape(name)}\b", re.MULTILINE)
    found = None
    for match in head.finditer(text, starts[first], stop):
        line = bisect_left(starts, match.start())
        if line < end and starts[line] == match.start():
            found = line
    return found


def _end(text: str, starts: list[int], line: int, limit: int) -> int:
    """The logical line after a definition's last."""
    own = _indentation(text, starts[line]) or ""
    for after in range(line + 1, limit):
        indent = _indentation(text, starts[after])
        if indent is not None and len(indent) <= len(own):
            return after
    return limit


def _with_decorators(text: str, starts: list[int], line: int) -> int:
    """The logical line at which the definition's decorators begin."""
    first = line
    for before in range(line - 1, -1, -1):
        if _DECORATOR.match(text, starts[before]):
            first = before
        elif _indentation(text, starts[before]) is not None:
            break
    return first


def _parse_alone(lines: str, name: str) -> Definition | None:
    """The definition that the lines are, however far they are indented; None if they are something else."""
    indented = lines[:1] in (" ", "\t")
    try:
        body = ast.parse(f"if True:\n{lines}" if indented else lines).body
    except SyntaxError:
        return None
    if indented and len(body) == 1 and isinstance(body[0], ast.If):
        body = body[0].body
    one = body[0] if len(body) == 1 else None
    return one if isinstance(one, Definition) and one.name == name else None
