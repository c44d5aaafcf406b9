"""What one writes first: `tl.dot_scaled` on the checkpoint's bytes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from workload import Case, Weights

from .common import CLAMP, Call, Shared, step_of


@triton.jit
def _naive_product(
    x_ptr, w_ptr, s_ptr, o_ptr, ids_ptr, N, K: tl.constexpr, TOP_K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    route = tl.program_id(1)
    expert = tl.load(ids_ptr + route).to(tl.int64)
    n, t, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, 16), tl.arange(0, BK)
    half, block = tl.arange(0, BK // 2), tl.arange(0, BK // 32)
    x_ptrs = x_ptr + (route // TOP_K).to(tl.int64) * K + k[None, :] + t[:, None] * 0
    w_ptrs = w_ptr + (expert * N + n[None, :]) * (K // 2) + half[:, None]
    s_ptrs = s_ptr + (expert * N + n[:, None]) * (K // 32) + block[None, :]
    acc = tl.zeros((16, BN), tl.float32)
    for _ in range(0, K, BK):
        x = tl.load(x_ptrs, mask=t[:, None] == 0, other=0.0)
        acc = tl.dot_scaled(x, None, "bf16", tl.load(w_ptrs), tl.load(s_ptrs), "e2m1", acc)
        x_ptrs += BK
        w_ptrs += BK // 2
        s_ptrs += BK // 32
    offs = route.to(tl.int64) * N + n[None, :] + t[:, None] * 0
    tl.store(o_ptr + offs, acc.to(tl.bfloat16), mask=t[:, None] == 0)


class Naive:
    """The first thing one writes: `tl.dot_scaled` on the checkpoint's bytes, a program per route, eager around."""

    def __init__(self, weights: Weights, shared: Shared) -> None:
        self.weights = weights

    def call(self, case: Case) -> Call:
        x, ids, probabilities = case
        w13, s13, w2, s2 = self.weights
        routes, rows, hidden = ids.numel(), w13.shape[1], x.shape[1]
        if routes > 1024:
            raise ValueError("one program row per route: not timed above 1024 routes")
        both = torch.empty(routes, rows, dtype=x.dtype, device=x.device)
        out = torch.empty(routes, hidden, dtype=x.dtype, device=x.device)

        def run() -> torch.Tensor:
            _naive_product[(rows // 64, routes)](
                x, w13, s13, both, ids, rows, K=hidden, TOP_K=ids.shape[1], BN=64, BK=step_of(hidden)
            )  # fmt: skip
            gate, up = both.chunk(2, -1)
            middle = torch.nn.functional.silu(gate.clamp(max=CLAMP)) * up.clamp(-CLAMP, CLAMP)
            _naive_product[(hidden // 64, routes)](
                middle, w2, s2, out, ids, hidden, K=rows // 2, TOP_K=1, BN=64, BK=step_of(rows // 2)
            )  # fmt: skip
            return (out.view(*ids.shape, hidden) * probabilities[..., None]).sum(1)

        return run
