"""Checkpoints of a run, made once where several runs share their directory."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.e2e import faults

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "checkpoints" / "make.py"
DRAFT = "-dspark"  # behind a kind: with that draft instead of NextN's
CAST = "-cast"  # behind a kind: NVFP4 as a lossless cast of MXFP4


def path(models: Path, kind: str, seed: int) -> Path:
    """Directory of a checkpoint."""
    return models / f"{kind}-{seed}"


def arguments(kind: str, seed: int) -> list[str]:
    """Of `checkpoints/make.py`, beside the directory."""
    more = ["--draft", "dspark"] if kind.endswith(DRAFT) else ["--cast"] if kind.endswith(CAST) else []
    return ["--kind", kind.removesuffix(DRAFT).removesuffix(CAST), *more, "--seed", str(seed)]


def write(models: Path, kind: str, seed: int, shape: tuple[str, ...]) -> bool:
    """Write a checkpoint unless it is there; whether it was written now.

    It appears under its name when it is complete. A second process that wants it meanwhile waits.

    Args:
        models: directory of all checkpoints.
        kind: as in `launches.Launch`; a damaged one is made of the good one, which must be there.
        seed: of the numbers.
        shape: further arguments of `checkpoints/make.py`.

    Raises:
        FileExistsError: something else has the name.
        subprocess.CalledProcessError: `checkpoints/make.py` failed; its message is on standard error.
    """
    directory = path(models, kind, seed)
    with _alone(directory):
        if (directory / "config.json").exists():
            return False
        if directory.exists():
            raise FileExistsError(f"{directory} has no config.json; expected a checkpoint, or nothing, there")
        part = directory.with_name(f".{directory.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # of a run that was killed
        good, _, damage = kind.rpartition("-")
        if damage in faults.DAMAGES:
            faults.damage(path(models, good, seed), part, damage)
        else:
            command = [sys.executable, str(SCRIPT), str(part), *arguments(kind, seed), *shape]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        part.rename(directory)
    return True


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One process at a time; the lock ends with its holder."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f".{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
