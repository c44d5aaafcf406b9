"""What killed or hanging compiles left in the directories where SGLang's stack compiles at first use. Reads only.

Three kinds of lock: torch's is held by existing, so a killed compile leaves it held for ever; FlashInfer's and
TVM-FFI's are flocks, whose (empty) files stay by design and which the system frees with their process, so only a held
one tells anything; Triton has none and leaves unfinished outputs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sglang_sm120 import files

LOCK_AGE_S = 3600  # the longest single compile seen (SGLang's Marlin MoE module on one core) takes 400 s
PROC = Path("/proc")


@dataclass(frozen=True)
class Leftover:
    """Something in a cache.

    Attributes:
        path: with `~` for the home directory.
        age_s: seconds since it was last written; of a held lock, since its holder started.
        blocks: the next compile waits for it.
        says: what it is, in a line that names path and age.
        remedy: what to do.
    """

    path: str
    age_s: int
    blocks: bool
    says: str
    remedy: str


def leftovers() -> list[Leftover]:
    """All that is older than an hour, in the order of the directories."""
    return [*_torch_locks(), *_held_locks(), *_unfinished(), *_outdated()]


def age(seconds: float) -> str:
    """`5 min`, `3 h`, `12 days`."""
    for unit, length in (("days", 86400), ("h", 3600)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds // 60:.0f} min"


def directory(variable: str, default: str) -> Path | None:
    """Where a cache is: the variable's value, or the default below the user's home; None if it is not there."""
    given, base = os.environ.get(variable), files.user_home()
    if not given and base is None:
        return None
    found = Path(given) if given else Path(str(base), default)
    try:
        return found if found.is_dir() else None
    except OSError:
        return None


def _torch_locks() -> Iterator[Leftover]:
    root = directory("TORCH_EXTENSIONS_DIR", ".cache/torch_extensions")
    for path, seconds in _old(root, "**/lock"):
        name = files.short(path)
        says = f"{name} is {age(seconds)} old: a killed compile left it, and the next one waits for it"
        yield Leftover(name, seconds, True, says, f"when no SGLang is starting, remove it: rm {name}")


def _held_locks() -> Iterator[Leftover]:
    base = os.environ.get("FLASHINFER_WORKSPACE_BASE")
    flashinfer = Path(base, ".cache/flashinfer") if base else directory("", ".cache/flashinfer")
    holders = _flocks()
    for root in (flashinfer, directory("TVM_FFI_CACHE_DIR", ".cache/tvm-ffi")):
        for path in root.glob("**/*.lock") if root is not None and holders else ():
            status = _status(path)
            pid = holders.get((status.st_dev, status.st_ino)) if status is not None else None
            seconds = _running_for(pid) if pid else 0
            if pid and seconds > LOCK_AGE_S:
                name = files.short(path)
                says = f"{name} is held by process {pid}, which has run for {age(seconds)}; other compiles wait for it"
                yield Leftover(name, seconds, True, says, f"if it hangs, end it: kill {pid}")


def _unfinished() -> Iterator[Leftover]:
    home = os.environ.get("TRITON_HOME")
    triton = Path(home, ".triton/cache") if home else directory("", ".triton/cache")
    given = os.environ.get("TRITON_CACHE_DIR")
    root = Path(given) if given else triton
    found = []
    for path, seconds in _old(root, "*/tmp.pid_*"):
        pid = re.match(r"tmp\.pid_(\d+)_", path.name)
        if pid and not (PROC / pid[1]).exists():
            found.append((path, seconds))
    if found:
        oldest, name = max(seconds for _, seconds in found), files.short(str(root))
        says = (
            f"{name} has outputs of {len(found)} killed compiles, the oldest {age(oldest)} old; nothing waits for them"
        )
        yield Leftover(name, oldest, False, says, f"to save space: rm -r {name}/*/tmp.pid_*")


def _outdated() -> Iterator[Leftover]:
    try:
        installed = version("flashinfer-python")
    except PackageNotFoundError:
        return
    base = os.environ.get("FLASHINFER_WORKSPACE_BASE")
    root = Path(base, ".cache/flashinfer") if base else directory("", ".cache/flashinfer")
    for path, seconds in _old(root, "*"):
        if re.match(r"\d+\.\d+", path.name) and path.name != installed and path.is_dir():
            name = files.short(path)
            says = f"{name} was compiled by another FlashInfer ({installed} is installed), {age(seconds)} ago; unused"
            yield Leftover(name, seconds, False, says, f"to save space: rm -r {name}")


def _old(root: Path | None, pattern: str) -> list[tuple[Path, int]]:
    """Path and age of what is older than an hour."""
    found = []
    for path in sorted(root.glob(pattern)) if root is not None else ():
        status = _status(path)
        seconds = int(time.time() - status.st_mtime) if status is not None else 0
        if seconds > LOCK_AGE_S:
            found.append((path, seconds))
    return found


def _status(path: Path) -> os.stat_result | None:
    """What a link leads to; None if it leads nowhere, or if a compile that just ended has removed the file."""
    try:
        return path.stat()
    except OSError:
        return None


def _flocks() -> dict[tuple[int, int], int]:
    """(Device, inode) -> process of the flocks that are held now. An inode alone may be another file system's."""
    try:
        lines = (PROC / "locks").read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        fields = line.split()
        if "FLOCK" in fields and "->" not in fields:
            major, minor, inode = fields[5].split(":")
            found[os.makedev(int(major, 16), int(minor, 16)), int(inode)] = int(fields[4])
    return found


def _running_for(pid: int) -> int:
    """Seconds since a process started; 0 if it is gone."""
    try:
        started = int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
        up = float((PROC / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return int(up - started / os.sysconf("SC_CLK_TCK"))
