#!/usr/bin/env python3
"""A Triton release packed small, for a machine without a network: `selftest --sm120-code --triton DIR` takes it.

    carry_triton.py 3.9.0 --python 3.12 --to DIR [--part-mib 60]

Fetches the wheel with pip, leaves out what compiling for NVIDIA GPUs does not need (profilers, AMD's libraries, the
other assembler, debug symbols) and writes DIR/triton-3.9.0-cp312-cp312.tar.xz, in numbered parts where that is larger
than --part-mib; there `cat triton-3.9.0-*.part* > triton-3.9.0-cp312-cp312.tar.xz` joins them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LEFT_OUT = (
    "backends/amd/lib", "backends/nvidia/lib/cupti", "backends/nvidia/lib/cupti-blackwell", "profiler",
    "instrumentation", "_C/libproton.so",
    "backends/nvidia/bin/ptxas", "backends/nvidia/bin/cuobjdump", "backends/nvidia/bin/nvdisasm",
)  # fmt: skip


def wheel_of(version: str, python: str, to: Path) -> Path:
    """The release's wheel for a Python, by pip."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--dest", str(to), f"triton=={version}"]
    subprocess.run(command, check=True)
    return next(to.glob("triton-*.whl"))


def slim(package: Path) -> None:
    """Leave out what is not needed, and the symbols of libraries."""
    for name in LEFT_OUT:
        path = package / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for library in package.rglob("*.so"):
        subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)


def pack(tree: Path, archive: Path, part_mib: int) -> list[Path]:
    """The tree as `archive`, or as its parts."""
    subprocess.run(["tar", "-C", str(tree), "-I", "xz -6 -T0", "-cf", str(archive), "."], check=True)
    if archive.stat().st_size <= part_mib << 20:
        return [archive]
    subprocess.run(["split", "-b", f"{part_mib}M", "-d", str(archive), f"{archive}.part"], check=True)
    archive.unlink()
    return sorted(archive.parent.glob(f"{archive.name}.part*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("--python", default="3.12", help="of the machine (3.12)")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--part-mib", type=int, default=60)
    a = parser.parse_args()
    a.to.mkdir(parents=True, exist_ok=True)
    tag = f"cp{a.python.replace('.', '')}"
    with tempfile.TemporaryDirectory() as scratch:
        wheel = wheel_of(a.version, a.python, Path(scratch))
        tree = Path(scratch) / "tree"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tree)
        slim(tree / "triton")
        for part in pack(tree, a.to / f"triton-{a.version}-{tag}-{tag}.tar.xz", a.part_mib):
            print(f"{part} {part.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()
