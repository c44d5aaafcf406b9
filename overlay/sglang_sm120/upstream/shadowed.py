"""Whether Python would import another package in the place of an installed one. Imports nothing of what it looks at."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from sglang_sm120 import files


@dataclass(frozen=True)
class Shadow:
    """A package that Python would import in the place of an installed one.

    Attributes:
        says, hint: what shadows what, and what to do.
        fatal: it is no SGLang, so a launch would not find SGLang's modules.
    """

    says: str
    hint: str
    fatal: bool


def shadow_of(name: str) -> Shadow | None:
    """What shadows a package for `python -m`, which looks into the working directory first; None if nothing does."""
    where, installed, imported = here(), _installed(name), _imported(name)
    folder = where / name if where is not None else None
    if folder is not None and (folder / "__init__.py").is_file() and not _same(folder, installed or imported):
        fatal = _is_no_sglang(name, folder)
        says = f"{files.short(folder)} {'shadows' if fatal else 'can shadow'} the installed {name}"
        return Shadow(says, "start SGLang from another directory", fatal)
    if installed and imported and not _same(imported, installed):
        says = f"{files.short(imported)} shadows the installed {name} ({files.short(installed)})"
        hint = "take it out of PYTHONPATH, or uninstall the package that brings it"
        return Shadow(says, hint, _is_no_sglang(name, imported))
    return None


def here() -> Path | None:
    """The working directory; None if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _is_no_sglang(name: str, folder: Path) -> bool:
    return name == "sglang" and not (folder / "srt").is_dir()


def _installed(name: str) -> Path | None:
    """The folder of the distribution of that name; None if it is not installed, or installed for editing."""
    try:
        folder = Path(str(distribution(name).locate_file(name)))
    except PackageNotFoundError:
        return None
    return folder if (folder / "__init__.py").is_file() else None


def _imported(name: str) -> Path | None:
    """The folder that a new process would import, whatever this one has imported."""
    specs = (finder.find_spec(name, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    spec = next((found for found in specs if found is not None), None)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _same(a: Path, b: Path | None) -> bool:
    return b is not None and a.resolve() == b.resolve()
