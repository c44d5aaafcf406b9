"""Fingerprints of the upstream code that a patch touches, and the check before it is touched.

A fingerprint is a hash of the function's syntax tree without doc-strings, comments and positions. It is taken from the
source file, so that checking costs no import and works in every process. It does not depend on the Python version:
fields that are empty, and fields that newer versions added, are left out.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from sglang_sm120.upstream import definitions, releases
from sglang_sm120.upstream.definitions import Definition

_IGNORED_FIELDS = frozenset({"type_comment", "type_params", "kind"})


@dataclass(frozen=True)
class Target:
    """An upstream function or class that a patch replaces or relies on.

    Attributes:
        module: dotted module path.
        qualname: path inside the module, as in `Class.method`.
        fingerprints: release -> fingerprint that the patch was proven against; releases in which the patch does not
            touch the target, or which lack it, are left out.
    """

    module: str
    qualname: str
    fingerprints: Mapping[str, str] = field(hash=False)

    def __str__(self) -> str:
        return f"{self.module}.{self.qualname}"

    def difference(self, release: str) -> str | None:
        """How the installed code differs from what was proven on the release; None if it does not.

        A release that nobody proved is compared with the last one that was.
        """
        expected = self.fingerprints.get(release)
        if expected is None and releases.is_proven(release):
            return None
        expected = expected or self.fingerprints.get(releases.PROVEN[-1])
        seen = found_fingerprint(self)
        if seen == expected:
            return None
        state = "is gone" if seen is None else f"has fingerprint {seen}"
        return f"{self} {state}; expected {expected or 'none'}"


def fingerprint(definition: ast.AST) -> str:
    """Twelve hex digits that change when the code does, and not with its formatting or the Python version."""
    return hashlib.sha256(_normal(definition).encode()).hexdigest()[:12]


def source_file(module: str) -> Path | None:
    """The file of a module, found without importing it or the packages that hold it; None if there is none."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.submodule_search_locations is None:
        return None
    found = (file_below(Path(root), rest) for root in spec.submodule_search_locations)
    return next(filter(None, found), None)


def file_below(directory: Path, parts: Sequence[str]) -> Path | None:
    """The file of the module with these names below a directory of modules; None if there is none."""
    path = directory.joinpath(*parts)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def find(module: str, qualname: str) -> Definition | None:
    """The definition in the installed source; None when the module or the name is gone."""
    path = source_file(module)
    return None if path is None else definitions.find(_read(path, path.stat().st_mtime_ns), qualname)


def has_module(module: str) -> bool:
    """Whether the installed source has such a module. Imports nothing."""
    return source_file(module) is not None


def has_field(module: str, qualname: str, field_name: str) -> bool:
    """Whether a class of the installed source declares a field or attribute of that name. Imports nothing."""
    definition = find(module, qualname)
    if not isinstance(definition, ast.ClassDef):
        return False
    declared: list[ast.expr] = [n.target for n in definition.body if isinstance(n, ast.AnnAssign)]
    declared += [t for n in definition.body if isinstance(n, ast.Assign) for t in n.targets]
    return any(isinstance(t, ast.Name) and t.id == field_name for t in declared)


def found_fingerprint(target: Target) -> str | None:
    """Fingerprint of the target as installed; None when it is gone."""
    definition = find(target.module, target.qualname)
    return None if definition is None else fingerprint(definition)


@lru_cache(maxsize=8)
def _read(path: Path, _mtime: int) -> str:
    return path.read_text(encoding="utf-8")


def _normal(node: object) -> str:
    if isinstance(node, list):
        return "[" + ",".join(_normal(n) for n in node) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for name in node._fields:
        value = getattr(node, name, None)
        if name == "body" and isinstance(value, list):
            value = _without_docstring(value)
        if name not in _IGNORED_FIELDS and value is not None and value != []:
            parts.append(f"{name}={_normal(value)}")
    return f"{type(node).__name__}({','.join(parts)})"


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:]
    return body
