#!/usr/bin/env python3
"""Seconds that `warm_up` spends on compiling, for SM120 and with an empty cache. Needs no GPU, and loads nothing.

    PYTHONPATH=overlay python3 benchmarks/kernels/warm_up_time.py --out receipt.json

Each layer is compiled in a process of its own, so that nothing is left of the one before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EXPERTS, HIDDEN, TOP_K = 256, 4096, 6  # V4-Flash
SMS = 188


def compile_layer(inter: int, activation: str) -> dict[str, Any]:
    """What `warm_up` does for one layer on a GPU of compute capability 12.0, except loading."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import CompiledKernel

    from sglang_sm120.kernels.sm120 import fp4_moe as moe
    from sglang_sm120.kernels.sm120.fp4_moe import runtime
    from sglang_sm120.kernels.sm120.fp4_moe.host import program, schedule

    class Driver:
        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, index: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 120, 32)

    triton.runtime.driver.set_active(Driver())
    CompiledKernel._init_handles = lambda self: None
    runtime.is_compiled = program.has_pdl = program.has_native_fp8 = lambda device: True
    schedule.sm_count = lambda device: SMS
    torch.cuda.device = lambda index: contextlib.nullcontext()
    w = moe.PreparedWeights(*[torch.empty(1, dtype=torch.uint8)] * 4, EXPERTS, HIDDEN, inter, False)
    before = processor_seconds()
    done = moe.warm_up(w, TOP_K, activation=activation)
    spent = round(processor_seconds() - before, 2)
    return {"kernels": done.kernels, "seconds": round(done.seconds, 2), "cpu": spent, "triton": triton.__version__}


def processor_seconds() -> float:
    """Of this process and of the assemblers that it started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def in_a_process(inter: int, activation: str, cache: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--layer", f"{inter},{activation}"]
    env = os.environ | {"TRITON_CACHE_DIR": cache}
    return json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", help=argparse.SUPPRESS)
    parser.add_argument("--commit", default="", help="recorded in the receipt")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.layer:
        inter, activation = options.layer.split(",")
        print(json.dumps(compile_layer(int(inter), activation)))
        return 0
    rows = []
    for activation in ("bf16", "mxfp8"):
        for tp in (1, 2, 4, 8):
            with tempfile.TemporaryDirectory() as cache:
                cold, warm = (in_a_process(2048 // tp, activation, cache) for _ in range(2))
            row = {"layer": f"V4-Flash TP{tp}", "activation": activation, "kernels": cold["kernels"]}
            row |= {"seconds_empty_cache": cold["seconds"], "processor_seconds_empty_cache": cold["cpu"]}
            rows.append(row | {"seconds_filled_cache": warm["seconds"], "load": round(os.getloadavg()[0], 1)})
            print(rows[-1], flush=True)
    receipt = {
        "schema": 1, "kind": "warm_up", "target": "sm_120a", "triton": cold["triton"],
        "python": platform.python_version(), "cores": len(os.sched_getaffinity(0)),
        "commit": options.commit, "command": [Path(a).name for a in sys.argv], "date": time.strftime("%Y-%m-%d"),
        "note": "1 token to any number; no GPU, so loading is not included; load: of the whole machine, shared",
        "rows": rows,
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(receipt, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
