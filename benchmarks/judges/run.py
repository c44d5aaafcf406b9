#!/usr/bin/env python3
"""Let code that nobody here wrote judge how this project reads and multiplies FP4 weights. No GPU.

    python3 benchmarks/judges/run.py                         packages go to a temporary directory
    python3 benchmarks/judges/run.py --packages DIR          or stay in this one
    python3 benchmarks/judges/run.py --out FILE              the receipt; default: benchmarks/receipts/judges.json

ml_dtypes               the values of e2m1, e8m0 and e4m3, bit for bit
ModelOpt, compressed-tensors, torchao   decoders, and quantisers with their decoders, bit for bit
FlashInfer              the decoder and the expert layers of its references
transformers            its MXFP4 decoder, and DeepseekV4Experts
triton_kernels and b12x have a program of their own, judge.py.

Beside each stands a reference that is wrong: halves swapped, one binade off, gate's global scale for the up half too.
It must be told apart. Start it with the Python that has SGLang, which brings transformers, compressed-tensors,
FlashInfer and ml_dtypes; pip installs the others. Nothing of theirs is part of this repository.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "overlay")]

FETCHED = (
    "nvidia-modelopt",
    "torchao",
    "omegaconf",
    "antlr4-python3-runtime==4.9.*",
    "pulp",
)  # and what the first needs
JUDGES = ("nvidia-modelopt", "compressed-tensors", "torchao", "flashinfer-python", "transformers", "ml_dtypes")
RECEIPT = ROOT / "benchmarks" / "receipts" / "judges.json"


def install(folder: Path) -> None:
    """Put the packages that SGLang does not bring into a folder, unless it has them."""
    if not (folder / "modelopt").is_dir() or not (folder / "torchao").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *FETCHED]
        subprocess.run(pip, check=True)


def receipt() -> dict[str, Any]:
    """All verdicts, in a process that has the packages on its path."""
    import torch
    import triton

    from benchmarks.judges import layers, tables, weights
    from benchmarks.reports.commit import commit

    rows = []
    for part in (tables, weights, layers):
        rows += part.verdicts()
    return {
        "schema": 2, "kind": "judges", "commit": commit(), "device": "CPU, Triton's interpreter",
        "python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__,
        "packages": {name: metadata.version(name) for name in JUDGES}, "rows": rows,
    }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    wrong = ", ".join(f"{name} {figure:.2g}" for name, figure in row["wrong"].items())
    shape = "E{} H{} I{} K{} T{}".format(*row["shape"]) if "shape" in row else ""
    return (
        f"{'good' if row['good'] else 'BAD '} {row['judge']:19s} {row['format']:14s} {row['what']:21s} {shape:22s} "
        f"{row['figure']:.2e} of {row['limit']:.2e}; wrong: {wrong}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, metavar="DIR", help="outside the checkout")
    parser.add_argument("--out", type=Path, default=RECEIPT)
    parser.add_argument("--judge", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        made = receipt()
        options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        print("\n".join(map(line, made["rows"])))
        return int(not all(row["good"] for row in made["rows"]))
    if options.packages and options.packages.resolve().is_relative_to(ROOT):
        parser.error(f"--packages is {options.packages}, in the checkout; expected a directory outside")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.packages or Path(temporary)
        install(folder)
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, __file__, "--judge", "--out", str(options.out)]
        return subprocess.run(command, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
