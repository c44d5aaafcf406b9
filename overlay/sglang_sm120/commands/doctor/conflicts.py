"""What in this environment could get in the overlay's way, found before a launch: other plugins, shadows, tile tables.

Reads sources and files; imports nothing of what it looks at.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from sglang_sm120 import files
from sglang_sm120.kernels.sm120 import tile_tables
from sglang_sm120.kernels.sm120.tile_tables import Machine
from sglang_sm120.patching.records import Patch
from sglang_sm120.upstream import shadowed
from sglang_sm120.upstream.contracts import Target

GROUP, NAME = "sglang.srt.plugins", "sm120"
FILE_LIMIT = 2000  # files of a plugin that are read


@dataclass
class Found:
    """Warnings, each with the hint of the same place in `hints`, errors with a remedy in them, and rows."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def warn(self, warning: str, hint: str) -> None:
        self.warnings.append(warning)
        self.hints.append(hint)

    def fail(self, error: str, remedy: str) -> None:
        self.errors.append(f"{error}; {remedy}")


def other_plugins(patches: Sequence[Patch]) -> Found:
    """Plugins of SGLang's group that are not ours, and which targets of our patches their sources replace.

    Sources are read, not run: a plugin may replace what it nowhere spells out. So each one is listed in any case.
    """
    found = Found()
    allowed = [n.strip() for n in os.environ.get("SGLANG_PLUGINS", "").split(",") if n.strip()]
    points = [e for e in entry_points(group=GROUP) if not allowed or e.name in allowed]
    ours = next((i for i, e in enumerate(points) if e.name == NAME), None)
    for number, point in enumerate(points):
        if point.name == NAME:
            continue
        order = "beside" if ours is None else "before" if number < ours else "after"
        sources = list(_sources(point))
        replaced = list(_replaced(sources, patches))
        says = f"loads {order} sm120; " + (
            "its source was not found" if not sources else "its source replaces nothing that the overlay touches"
        )
        row = {"name": point.name, "distribution": point.dist.name if point.dist else None, "order": order}
        found.rows.append(row | {"replaces": replaced, "says": "" if replaced else says})
        for target in dict.fromkeys(r["target"] for r in replaced):
            found.warn(*_clash(row, target, [r for r in replaced if r["target"] == target]))
    return found


def _clash(plugin: dict[str, Any], target: str, rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Warning and hint."""
    patches = list(dict.fromkeys(row["patch"] for row in rows))
    return (
        f"plugin {plugin['name']} ({plugin['distribution'] or 'unknown'}), which loads {plugin['order']} {NAME}, "
        f"replaces {target} in {rows[0]['file']}:{rows[0]['line']}; patch {', '.join(patches)} touches it too",
        f"keep one of the two: SGLANG_PLUGINS={NAME} leaves {plugin['name']} out, "
        f"SGLANG_SM120_DISABLE={','.join(patches)} leaves ours out",
    )


def _sources(point: EntryPoint) -> Iterator[Path]:
    """Python files of the package that holds the entry point, found without importing it."""
    try:
        spec = importlib.util.find_spec(point.module.split(".")[0])
    except (ImportError, ValueError):
        return
    if spec is None:
        return
    if not spec.submodule_search_locations:
        yield from [Path(spec.origin)] if spec.origin and spec.origin.endswith(".py") else []
        return
    count = 0
    for root in spec.submodule_search_locations:
        for path in sorted(Path(root).rglob("*.py")):
            count += 1
            if count > FILE_LIMIT:
                return
            yield path


def _replaced(sources: Iterable[Path], patches: Sequence[Patch]) -> Iterator[dict[str, Any]]:
    for path in sources:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
            tree = ast.parse(text) if "sglang" in text else None
        except (OSError, SyntaxError, ValueError):  # not for this Python, or no source at all
            continue
        for patch in patches if tree is not None else ():
            for target in patch.targets:
                line = _replacing_line(text, tree, target)
                if line:
                    place = f"{path.parent.name}/{path.name}"
                    yield {"target": str(target), "patch": patch.name, "file": place, "line": line}


def _replacing_line(text: str, tree: ast.AST | None, target: Target) -> int | None:
    """The first line that hooks the target or its class by its path, or assigns an attribute of its name."""
    *owner, last = target.qualname.split(".")
    words = owner or [target.module.rpartition(".")[2]]
    if tree is None or not all(re.search(rf"\b{re.escape(word)}\b", text) for word in (*words, last)):
        return None
    paths = {str(target), ".".join([target.module, *owner])} if owner else {str(target)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in paths and isinstance(node.value, str):
            return node.lineno
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == last and not _own(node):
            return node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            name = node.args[1] if len(node.args) == 3 else None
            if isinstance(name, ast.Constant) and name.value == last:
                return node.lineno
    return None


def _own(node: ast.Attribute) -> bool:
    """An attribute of the plugin's own object."""
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def shadows() -> Found:
    """Packages that Python would import in the place of the installed ones; a launch fails where one is no SGLang."""
    found = Found()
    if shadowed.here() is None:
        found.warn("the working directory was removed", "start SGLang from another directory")
    for shadow in filter(None, map(shadowed.shadow_of, ("sglang", "kernels"))):
        if shadow.fatal:
            found.fail(f"{shadow.says}, so `python -m sglang.launch_server` fails here", shadow.hint)
        else:
            found.warn(shadow.says, shadow.hint)
    return found


def tables(here: Machine | None) -> Found:
    """Tile tables in the home: which one a launch here uses, which it ignores and why, and which are of other GPUs."""
    found = Found()
    ours = None
    if here is not None:
        try:
            ours = tile_tables.path_for(here)
        except tile_tables.NoHomeError as error:
            found.warn(f"no tile table can be used: {error}", f"set {tile_tables.HOME}")
    for path in tile_tables.listed():
        used, problem, stale = path == ours, None, False
        try:
            table = tile_tables.load(path)
            problem = table.machine.difference(here) if here else f"it is for {table.machine.gpu}, and no GPU is here"
            stale = here is not None and problem is not None and (used or table.machine.gpu == here.gpu)
        except (ValueError, OSError) as error:
            problem, stale = str(error), True
        name = files.short(path)
        found.rows.append({"path": name, "used": used and problem is None, "problem": problem})
        if stale:
            found.warn(
                f"tile table {name} is not used: {problem}; launches run the default tiles",
                f"measure again: sglang-sm120 tune; or remove it: rm {name}",
            )
    return found
