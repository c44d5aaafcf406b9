"""Refuse to build a package that would silently lack its patches or kernels."""

from pathlib import Path

from setuptools import setup

PACKAGE = Path(__file__).parent / "overlay" / "sglang_sm120"
for name in ("patches", "kernels"):
    if not (PACKAGE / name).is_dir():
        raise SystemExit(
            f"{PACKAGE / name} is not a directory: this source tree lost its symbolic links (zip archives do that). "
            "Install from git, from the sdist or from a .tar.gz archive."
        )
setup()
