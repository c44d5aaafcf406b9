"""Refuse to build a package that would silently lack its patches or kernels, or hold modules that are gone."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PACKAGE = Path(__file__).parent / "overlay" / "sglang_sm120"
for name in ("patches", "kernels"):
    if not (PACKAGE / name).is_dir():
        raise SystemExit(
            f"{PACKAGE / name} is not a directory: this source tree lost its symbolic links (zip archives do that). "
            "Install from git, from the sdist or from a .tar.gz archive."
        )


class BuildFromNothing(build_py):
    """`pip install .` leaves build/lib behind, and setuptools packs what it finds there, deleted modules too."""

    def run(self):
        earlier = Path(self.build_lib) / PACKAGE.name
        if earlier.is_dir() and not self.editable_mode and not earlier.samefile(PACKAGE):  # the sources themselves
            shutil.rmtree(earlier)
        super().run()


setup(cmdclass={"build_py": BuildFromNothing})
