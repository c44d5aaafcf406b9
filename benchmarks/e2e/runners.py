"""The runners of V4-Flash's layers measured on this GPU, and what `auto` makes of them.

    python benchmarks/e2e/runners.py --out DIR [--tp 2 1] [--minutes 4]

Needs a GPU, and SGLang and sglang-sm120 in the interpreter's environment; no network. Runs `sglang-sm120 tune --only
runners` for NVFP4 and MXFP4 layers at each tensor-parallel size and writes DIR/runners-tpN.json, their tables in
DIR/home and what each process said in DIR/home/tune-logs. Prints the tables and the choices last.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

COLUMNS = 2048  # intermediate size of V4-Flash
CHOICE = """
import json, sys
from sglang_sm120.moe import measured, runner_tables
for entry in json.load(open(sys.argv[1]))["layers"]:
    rows = runner_tables.rows_of({"layers": [entry]})
    for layer, found in rows.items():
        for drafted in (1, 2):
            choice = measured.choose(found, list(found), "sm120_triton", measured.Mix(drafted=(drafted,)))
            print(f"auto  {layer}, {drafted} a sequence: {choice.runner} ({choice.says()}); out: {dict(choice.out)}")
"""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tp", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--minutes", type=float, default=4.0, help="for each size")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"SGLANG_SM120_HOME": str(a.out / "home")}
    texts, status = [], 0
    for tp in a.tp:
        receipt = a.out / f"runners-tp{tp}.json"
        shape = f"256,4096,{COLUMNS // tp},6"
        words = ["tune", "--only", "runners", "--shapes", f"{shape},nvfp4", shape, "--tp", str(tp)]
        words += ["--minutes", str(a.minutes), "--out", str(receipt)]
        command = [sys.executable, "-m", "sglang_sm120.cli", *words]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        status |= done.returncode
        texts.append(done.stdout)
        if receipt.exists():
            chosen = subprocess.run(
                [sys.executable, "-c", CHOICE, receipt], stdout=subprocess.PIPE, text=True, check=False
            )
            texts.append(chosen.stdout)
    print("\n".join(texts))
    return status


if __name__ == "__main__":
    sys.exit(main())
