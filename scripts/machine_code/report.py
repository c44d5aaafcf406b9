#!/usr/bin/env python3
"""What Triton makes of the MoE kernels for SM120 and SM121: compiled, disassembled, held to limits; no GPU.

    report.py                        the installed Triton, both architectures, as a table
    report.py --triton 3.6.0 3.9.0   these releases instead, fetched with pip into a cache if they are not there
    report.py --json                 the same as JSON
    report.py --receipt FILE         the same in a file; scripts/docs.py reads the one in benchmarks/receipts

Every tile that `schedule.plan` picks for the published shapes on a GPU of 188 SMs is compiled. Exit status 1 if a limit
is broken or no tile was compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.machine_code import listing
from scripts.machine_code.compiled_tile import TOOLS, broken_limits, measure, orders_of_addition, tiles, triton_tools
from sglang_sm120.kernels.sm120 import tile_tables

ROOT = Path(__file__).resolve().parents[2]
RELEASES = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")  # what SGLang 0.5.12 to 0.5.23 pin, and the newest
ARCHITECTURES = (120, 121)


def worker(architectures: list[int]) -> list[dict[str, Any]]:
    import triton

    rows = []
    version = tuple(int(n) for n in triton.__version__.split(".")[:2])
    for arch in architectures:
        for config in tiles():
            if config["mode"] == "mxfp8" and arch == 121 and version < (3, 8):
                continue  # no native block-scaled MMA: the kernels round to MXFP8 and multiply in bf16 there
            row = measure(config, arch)
            rows.append(row | {"broken": broken_limits(row)})
            print(
                f"{row['triton']} {row['arch']} {row['format']} {row['kernel']} {row['mode']} {row['tile']}",
                file=sys.stderr,
            )
    return rows


def fetched(version: str) -> Path:
    """The unpacked wheel of a Triton release, downloaded with pip the first time."""
    target = tile_tables.home() / "triton" / version
    if not (target / "triton").is_dir():
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as wheels:
            pip = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                wheels,
                f"triton=={version}",
            ]
            subprocess.run(pip, check=True)
            wheel = next(Path(wheels).glob("*.whl"))
            subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(target)], check=True)
    for tool in (target / "triton" / "backends" / "nvidia" / "bin").iterdir():
        tool.chmod(0o755)
    return target


def rows_of(version: str | None, architectures: list[int]) -> list[dict[str, Any]]:
    """The rows for one Triton release (None: the installed one), from a process of its own."""
    import triton

    path = [str(ROOT / "overlay")]
    if version and version != triton.__version__:
        path.insert(0, str(fetched(version)))
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path)) | {TOOLS: triton_tools(triton)}
    command = [sys.executable, __file__, "--worker", "--arch", *map(str, architectures)]
    return json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton", nargs="+", metavar="VERSION", help=f"releases, or 'all' for {', '.join(RELEASES)}")
    parser.add_argument("--arch", nargs="+", type=int, default=list(ARCHITECTURES), choices=ARCHITECTURES)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--receipt", type=Path, metavar="FILE", help="write the rows there, a line each")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        json.dump(worker(options.arch), sys.stdout)
        return 0
    versions = list(RELEASES) if options.triton == ["all"] else options.triton or [None]
    rows = [row for version in versions for row in rows_of(version, options.arch)]
    broken = [(r, what) for r in rows for what in r["broken"]]
    orders = orders_of_addition(rows)
    if options.receipt:
        options.receipt.write_text(listing.receipt(rows), encoding="utf-8")
    print(json.dumps({"schema": 1, "rows": rows}, indent=1) if options.json else listing.table(rows))
    for r, what in broken:
        print(
            f"BROKEN: {r['triton']} {r['arch']} {r['format']} {r['kernel']} {r['mode']} {r['tile']}: {what}",
            file=sys.stderr,
        )
    for what in orders:
        print(f"BROKEN: tiles add in different orders: {what}", file=sys.stderr)
    return int(bool(broken or orders) or not rows)


if __name__ == "__main__":
    sys.exit(main())
