#!/usr/bin/env python3
"""Microseconds of Python that a call of `fp4_moe` costs without a CUDA graph.

    PYTHONPATH=overlay python3 benchmarks/kernels/host_cost.py --out receipt.json

On a GPU: calls queued without waiting, launches included. Without one: the same Python down to Triton's launcher, whose
last step, the one that would call the driver, does nothing; that is a share of the cost and the receipt says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import timeit
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.nvidia.driver import CudaLauncher
from triton.compiler import CompiledKernel

from sglang_sm120.kernels.sm120 import fp4_moe as moe
from sglang_sm120.kernels.sm120.fp4_moe import runtime
from sglang_sm120.kernels.sm120.fp4_moe.host import program, schedule

EXPERTS, TOP_K = 256, 6
CALLS, RUNS = 100, 9  # a queue holds about 1000 launches before it makes the host wait


class StubDriver:
    """What Triton's launcher asks its driver."""

    def allocate_default_profile_scratch(self, size: int, align: int, stream: int) -> None: ...


def stub_kernel(*_: object, **__: object) -> CompiledKernel:
    """A compiled kernel whose launcher is Triton's own down to the call that would enter the driver."""
    run = object.__new__(CudaLauncher)
    vars(run).update(
        dict.fromkeys(("global_scratch_size", "global_scratch_align", "profile_scratch_size"), 0),
        profile_scratch_align=0, launch_cooperative_grid=False, launch_pdl=True, num_ctas=1, gsan_enabled=False,
        arg_annotations=(), kernel_signature=b"", launch=lambda *args: None,
    )  # fmt: skip
    kernel = object.__new__(CompiledKernel)
    vars(kernel).update(_run=run, module=None, function=1, packed_metadata=(4, 1, 0), name="stub", src=None)
    return kernel


def install_stub() -> None:
    """Take the GPU's way for CPU tensors, with kernels that do nothing."""
    triton.runtime.driver.set_active(StubDriver())
    runtime.is_compiled = lambda device: True
    runtime.current_stream = lambda index: 0
    runtime.Kernel.ready = stub_kernel
    schedule.sm_count = lambda device: 188
    program.has_pdl = lambda device: True
    torch.cuda.current_device = lambda: None
    torch.cuda.device = lambda index: contextlib.nullcontext()


def layer(device: str, hidden: int, inter: int) -> moe.PreparedWeights:
    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.uint8, device=device)

    w13, w2 = (EXPERTS, 2 * inter, hidden), (EXPERTS, hidden, inter)
    tensors = [empty(n, rows, k // part) for n, rows, k in (w13, w2) for part in (2, 32)]
    for scale in tensors[1::2]:
        scale.fill_(119)
    return moe.PreparedWeights(*tensors, EXPERTS, hidden, inter, False)


def measure(device: str, w: moe.PreparedWeights, tokens: int, activation: str) -> list[float]:
    """Microseconds a call, of each run."""
    x = torch.zeros(tokens, w.hidden_size, dtype=torch.bfloat16, device=device)
    ids = torch.arange(tokens * TOP_K, device=device, dtype=torch.int32).view(tokens, TOP_K) % EXPERTS
    weights = torch.ones(tokens, TOP_K, device=device)
    out = torch.empty_like(x)

    def call() -> None:
        moe.fp4_moe(x, w, ids, weights, activation=activation, out=out)

    call()
    raw = []
    for _ in range(RUNS):
        if device == "cuda":
            torch.cuda.synchronize()
        raw.append(timeit.timeit(call, number=CALLS) / CALLS * 1e6)
    return raw


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="4,64")
    parser.add_argument("--hidden", type=int, default=512, help="small, so that the host and not the GPU is the limit")
    parser.add_argument("--inter", type=int, default=128)
    parser.add_argument("--commit", default="", help="recorded in the receipt")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        install_stub()
        print("no GPU: Python alone, the launches are stubs")
    w = layer(device, options.hidden, options.inter)
    receipt: dict[str, Any] = {
        "schema": 1, "kind": "host_cost", "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "launches": "real" if device == "cuda" else "stubs: the Python share alone", "torch": torch.__version__,
        "triton": triton.__version__, "python": platform.python_version(), "commit": options.commit,
        "command": [Path(a).name for a in sys.argv], "units": "microseconds a call, of each run", "rows": [],
    }  # fmt: skip
    for activation in ("bf16", "mxfp8"):
        for tokens in map(int, options.tokens.split(",")):
            raw = measure(device, w, tokens, activation)
            row = {"activation": activation, "tokens": tokens, "best_us": min(raw), "raw": raw}
            receipt["rows"].append(row)
            print(f"{activation:5s} T={tokens:4d} {min(raw):6.1f} µs a call", flush=True)
    if options.out:
        options.out.write_text(json.dumps(receipt, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
