"""SGLang's releases on disk: each one's pure-Python tree, unpacked beside its metadata, and what it needs on the path.

Everything lies under ${SGLANG_SM120_HOME:-~/.cache/sglang-sm120}/compat and is downloaded once. A release is selected
by putting its tree first on PYTHONPATH of a child process; the environment's torch, Triton and FlashInfer serve all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from sglang_sm120.kernels.sm120 import tile_tables
from sglang_sm120.upstream import releases

# SGLang up to 0.5.19 registers a configuration that transformers 5.19 has of its own; 5.12 wants these tokenizers.
OLD_TRANSFORMERS = ("transformers==5.12.1", "tokenizers==0.22.2")
_NEED_OLD_TRANSFORMERS = releases.span("0.5.14", "0.5.19")
_SETTINGS = "SGLANG_"  # variables of SGLang and of the overlay, which must not leak into a run


class Unavailable(RuntimeError):
    """A release is neither in the cache nor to be had."""


def root() -> Path:
    """The cache's directory."""
    return tile_tables.home() / "compat"


def tree(release: str) -> Path:
    """Directory that holds `sglang/` and `sglang-*.dist-info/` of a release; downloads it the first time.

    Raises:
        Unavailable: it is not there and cannot be downloaded.
    """
    target = root() / release
    if not (target / "complete").exists():
        wheel = _wheel(release)
        shutil.rmtree(target, ignore_errors=True)
        unpack(wheel, target)
        (target / "complete").touch()
    return target


def unpack(wheel: Path, target: Path) -> None:
    """Unpack a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)


def path_of(release: str, at: Path | None = None) -> str:
    """PYTHONPATH that selects a release, or an edited copy of it in `at`."""
    parts = [str(at or tree(release))]
    if releases.base(release) in _NEED_OLD_TRANSFORMERS:
        parts.append(str(_old_transformers()))
    return os.pathsep.join(parts)


def environment(release: str, at: Path | None = None) -> dict[str, str]:
    """Environment of a child process that imports the release."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_SETTINGS) or k == tile_tables.HOME}
    return kept | {"PYTHONPATH": path_of(release, at), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _wheel(release: str) -> Path:
    wheels = root() / "wheels"
    found = sorted(wheels.glob(f"sglang-{release}-*.whl"))
    if not found:
        _pip("download", "--no-deps", "--only-binary", ":all:", "-d", str(wheels), f"sglang=={release}")
        found = sorted(wheels.glob(f"sglang-{release}-*.whl"))
    return found[0]


def _old_transformers() -> Path:
    target = root() / "transformers-5.12"
    if not (target / "complete").exists():
        shutil.rmtree(target, ignore_errors=True)
        _pip("install", "--no-deps", "--target", str(target), *OLD_TRANSFORMERS)
        (target / "complete").touch()
    return target


def _pip(*arguments: str) -> None:
    root().mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise Unavailable(f"pip {' '.join(arguments)} failed: {lines[-1] if lines else done.returncode}")
