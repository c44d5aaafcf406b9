"""Other Tritons than the installed one: packages or wheels in directories, each for processes of its own."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

TOOLS = "triton/backends/nvidia/bin"


def found_in(directories: list[Path], unpack_to: Path) -> list[Path]:
    """Directories to put in front of the module path: of packages as they are, of wheels and archives unpacked.

    Raises:
        ValueError: a directory holds no Triton, or a wheel is for another Python.
    """
    found: list[Path] = []
    for directory in directories:
        here = [directory] if (directory / "triton" / "__init__.py").is_file() else []
        here += sorted(p.parent.parent for p in directory.glob("*/triton/__init__.py"))
        for archive in sorted(p for p in directory.glob("triton*") if p.name.endswith((".whl", ".tar.xz"))):
            here.append(_unpacked(archive, unpack_to / archive.name))
        if not here:
            raise ValueError(f"--triton {directory} holds no package triton, no triton-*.whl and no triton-*.tar.xz")
        found += here
    return found


def _unpacked(archive: Path, target: Path) -> Path:
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    if f"-{tag}-" not in archive.name:
        raise ValueError(f"--triton: {archive.name} is not for this Python ({tag})")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(target)
    else:
        with tarfile.open(archive) as packed:
            packed.extractall(target, filter="data")
    for tool in (target / TOOLS).iterdir():  # a wheel keeps no permissions
        if tool.is_file():
            tool.chmod(0o755)
    return target
