#!/usr/bin/env python3
"""Let other projects' references and tolerances judge the MXFP4 MoE layer, on a GPU or in the interpreter.

    PYTHONPATH=overlay:PATH_OF_TRITON_KERNELS:PATH_OF_B12X python3 benchmarks/judges/judge.py --out receipt.json

triton_kernels  its MXFP4 dequantisation in torch and its assert_close with its defaults (2e-2 largest, 4e-3 RMS)
b12x W4A16      its float32 oracle for e2m1 with e8m0 per 32, and its comparison; it asks cosine > 0.998 of its own
kernel b12x W4A8       its oracle with activations rounded to MXFP8, which it holds its own kernel to with cosine >
0.995

Nothing of theirs is part of this repository; the packages used were sglang-kernel 0.4.5 (for triton_kernels) and b12x
1.5.1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

import torch
import triton

from sglang_sm120.kernels.sm120 import fp4_moe as moe

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.reports.commit import commit

LIMIT = 10.0
SMALL = ((4, 96, 64, 2, 1), (4, 96, 64, 2, 7), (3, 160, 96, 2, 20))  # experts, hidden, intermediate, top_k, tokens
LARGE = (
    (32, 4096, 1024, 6, 1), (32, 4096, 1024, 6, 7), (32, 4096, 512, 6, 64), (16, 4096, 512, 6, 300),
    (24, 5120, 288, 6, 33),
    (24, 7168, 192, 6, 129), (8, 4096, 2048, 6, 1000),
)  # fmt: skip


def inputs(experts: int, hidden: int, inter: int, top_k: int, tokens: int, device: str) -> tuple[Any, ...]:
    g = torch.Generator().manual_seed(tokens)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=g, dtype=torch.uint8).to(device)

    weights = (
        draw(0, 256, experts, 2 * inter, hidden // 2), draw(119, 123, experts, 2 * inter, hidden // 32),
        draw(0, 256, experts, hidden, inter // 2), draw(119, 123, experts, hidden, inter // 32),
    )  # fmt: skip
    x = torch.randn(tokens, hidden, generator=g).to(torch.bfloat16).to(device)
    ids = torch.rand(tokens, experts, generator=g).topk(top_k).indices.to(torch.int32).to(device)
    p = torch.rand(tokens, top_k, generator=g) + 0.1
    return weights, x, ids, (p / p.sum(-1, keepdim=True)).to(device)


def by_triton_kernels(weights: Any, x: torch.Tensor, ids: torch.Tensor, p: torch.Tensor) -> dict[str, Any]:
    from triton_kernels.numerics_details.mxfp import upcast_from_mxfp_torch
    from triton_kernels.testing import assert_close

    w13, s13, w2, s2 = weights
    want = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in ids.unique().tolist():
        token, slot = (ids == expert).nonzero(as_tuple=True)
        up = upcast_from_mxfp_torch(w13[expert], s13[expert], torch.float32, -1)
        down = upcast_from_mxfp_torch(w2[expert], s2[expert], torch.float32, -1)
        gate, linear = (x[token].float() @ up.T).chunk(2, -1)
        act = torch.nn.functional.silu(gate.clamp(max=LIMIT)) * linear.clamp(-LIMIT, LIMIT)
        want.index_add_(0, token, (act @ down.T) * p[token, slot, None])
    y = moe.fp4_moe(x, moe.prepare_mxfp4(*(t.clone() for t in weights)), ids, p, swiglu_limit=LIMIT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert_close(want, y)
    largest, rms = (float(v) for v in re.findall(r"error = ([0-9.e+-]+)", printed.getvalue()))
    return {"max_error": largest, "rms_error": rms, "limits": [2e-2, 4e-3], "good": True}


def by_b12x(weights: Any, x: torch.Tensor, ids: torch.Tensor, p: torch.Tensor, mxfp8: bool) -> dict[str, Any]:
    from b12x.moe._shared.kernels import reference

    w13, s13, w2, s2 = weights
    experts, hidden, inter = w13.shape[0], x.shape[1], w2.shape[2] * 2
    ones = torch.ones(experts, device=x.device)
    tail = (ids.long(), p, experts, hidden, inter)
    options = {"activation": "silu", "swiglu_limit": LIMIT, "w13_layout": "w31"}
    if mxfp8:
        want = reference.moe_reference_w4a8_mx(x, w13, s13, None, ones, w2, s2, None, ones, *tail, **options)
    else:
        e8m0 = torch.float8_e8m0fnu
        want = reference.moe_reference_w4a16_fp4_e8m0_k32(
            x, w13, s13.view(e8m0), ones, w2, s2.view(e8m0), ones, *tail, **options
        )
    prepared = moe.prepare_mxfp4(*(t.clone() for t in weights))
    y = moe.fp4_moe(x, prepared, ids, p, swiglu_limit=LIMIT, activation="mxfp8" if mxfp8 else "bf16")
    metrics = reference.compare_to_reference(y, want)
    limit = 0.995 if mxfp8 else 0.998
    relative = float((y.float() - want.float()).norm() / want.float().norm())
    return {
        "cosine": metrics.cos,
        "rmse": metrics.rmse,
        "relative": relative,
        "limits": [limit],
        "good": metrics.cos > limit,
    }


JUDGES = {
    "triton_kernels": by_triton_kernels,
    "b12x W4A16": lambda *a: by_b12x(*a, mxfp8=False),
    "b12x W4A8": lambda *a: by_b12x(*a, mxfp8=True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="judges.json")
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for shape in LARGE if device == "cuda" else SMALL:
        drawn = inputs(*shape, device)
        for name, judge in JUDGES.items():
            try:
                verdict = judge(*drawn)
            except AssertionError as error:
                verdict = {"good": False, "error": str(error)[:300]}
            rows.append({"judge": name, "shape": shape} | verdict)
            print(name, "E{} H{} I{} K{} T{}".format(*shape), verdict, flush=True)
    receipt = {
        "schema": 1, "kind": "judges", "commit": options.commit or commit(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version(), "rows": rows,
    }  # fmt: skip
    Path(options.out).write_text(json.dumps(receipt, indent=1))
    return int(not rows or not all(r["good"] for r in rows))


if __name__ == "__main__":
    sys.exit(main())
