#!/usr/bin/env python3
"""Whether the kernels of another checkout become the same PTX, tile by tile, for sm_120a and sm_90a; no GPU.

    against.py DIR                   the tiles that both have
    against.py DIR --triton 3.6.0    with this release instead of the installed one (see report.py)

Names of files, lines and labels of debug information do not count. Exit status 1 if a tile differs or the trees have
none in common.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "overlay").is_dir())
HALF_SUPERBLOCK = (5120, 2304 // 8, 384, 6)


def sm90_tiles(schedule: Any, shapes: Any, tokens: Any) -> list[dict[str, Any]]:
    """Those that a GPU of SM90 takes for MXFP4 on bf16 activations, as a checkout's `tiles` describes its own."""
    found = []
    for hidden, inter, experts, top_k in shapes:
        for count in tokens:
            plan = schedule.plan(schedule.Work(count, top_k, experts, hidden, inter), 132, True)
            partial = "*bf16" if "bfloat16" in str(plan.partial) else "*fp32"
            for kernel, tile in (("gate_up", plan.gate_up), ("down", plan.down)):
                found.append(
                    {"format": "mxfp4", "kernel": kernel, "mode": "bf16", "tile": tile, "many": plan.many,
                     "scan": plan.scan, "partial": partial, "hidden": hidden, "inter": inter, "top_k": top_k}
                )  # fmt: skip
    return found


def compiled_tiles(tree: Path) -> dict[str, str]:
    """A tile in words -> its PTX, by the kernels and the tiles of a checkout that is on the path."""
    files = (file for name in ("compiled_tile", "sm120_code") for file in tree.glob(f"scripts/**/{name}.py"))
    file = next(files)
    sys.path[:0] = [str(tree), str(file.parent)]
    code = importlib.import_module(file.stem)

    code.SHAPES = (*code.SHAPES, HALF_SUPERBLOCK)
    configs = [(120, c) for c in code.tiles()]
    schedule = next(
        m for name, m in sys.modules.items() if name.startswith("sglang_sm120.") and name.endswith(".schedule")
    )
    configs += [(90, c) for c in sm90_tiles(schedule, code.SHAPES, code.TOKENS)]
    found: dict[str, str] = {}
    for arch, c in configs:
        t = c["tile"]
        names = (arch, c.get("format", "mxfp4"), c["kernel"], c["mode"], "many" if c["many"] else "few", c["partial"])
        half = "half" if c["inter"] % 64 else "whole"
        numbers = (t.rows, t.tokens, t.stages, t.warps, t.superblocks, t.unroll)
        key = " ".join(map(str, (*names, half, *numbers)))
        if key not in found:
            found[key] = bare(code.compile_tile(c, arch).asm["ptx"])
    return found


def bare(ptx: str) -> str:
    """PTX without what only says where it comes from."""
    lines = ptx.split(".section")[0].splitlines()
    return "\n".join(line for line in lines if not re.match(r"\s*(\.loc|\.file|//)|\$L__tmp\d+:", line))


def dumped(tree: Path, triton: str | None) -> dict[str, str]:
    path = [str(tree / "overlay")]
    if triton:
        sys.path.insert(0, str(ROOT))
        from scripts.machine_code import report

        path.insert(0, str(report.fetched(triton)))
    command = [sys.executable, __file__, str(tree), "--dump"]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path))
    return json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="another checkout")
    parser.add_argument("--triton", metavar="VERSION")
    parser.add_argument("--dump", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.dump:
        json.dump(compiled_tiles(options.tree), sys.stdout)
        return 0
    theirs, ours = dumped(options.tree, options.triton), dumped(ROOT, options.triton)
    both = [key for key in ours if key in theirs]
    for key in both:
        print(f"{'same     ' if ours[key] == theirs[key] else 'DIFFERENT'} {key}")
    for key in theirs.keys() - ours.keys():
        print(f"only there: {key}")
    return int(not both or any(ours[key] != theirs[key] for key in both))


if __name__ == "__main__":
    sys.exit(main())
