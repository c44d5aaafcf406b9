"""What one writes first for NVFP4: codes and scales widened by arithmetic, `tl.dot` on bf16."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from workload import Case, Weights

from .common import CLAMP, Call, Shared, step_of


@triton.jit
def _value(code):
    magnitude, exponent = (code & 1).to(tl.float32), (code >> 1) & 3
    power = tl.where(exponent == 3, 4.0, tl.where(exponent == 2, 2.0, 1.0))
    value = tl.where(exponent == 0, 0.5 * magnitude, power * (1 + 0.5 * magnitude))
    return tl.where(code >= 8, -value, value)


@triton.jit
def _naive_product(
    x_ptr, w_ptr, s_ptr, g_ptr, o_ptr, ids_ptr, N, G_ROWS, K: tl.constexpr, TOP_K: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    route = tl.program_id(1)
    expert = tl.load(ids_ptr + route).to(tl.int64)
    n, t, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, 16), tl.arange(0, BK)
    byte = tl.arange(0, BK // 2)
    x_ptrs = x_ptr + (route // TOP_K).to(tl.int64) * K + k[None, :] + t[:, None] * 0
    w_ptrs = w_ptr + (expert * N + n[:, None]) * (K // 2) + byte[None, :]
    s_ptrs = s_ptr + (expert * N + n[:, None]) * (K // 16) + (byte // 8)[None, :]
    acc = tl.zeros((16, BN), tl.float32)
    for _ in range(0, K, BK):
        x = tl.load(x_ptrs, mask=t[:, None] == 0, other=0.0)
        w, s = tl.load(w_ptrs), tl.load(s_ptrs).to(tl.float32)
        both = tl.join(_value(w & 15) * s, _value(w >> 4) * s)
        acc = tl.dot(x, tl.trans(tl.reshape(both, (BN, BK)).to(tl.bfloat16)), acc)
        x_ptrs += BK
        w_ptrs += BK // 2
        s_ptrs += BK // 16
    acc *= tl.load(g_ptr + expert * (N // G_ROWS) + n // G_ROWS)[None, :]
    offs = route.to(tl.int64) * N + n[None, :] + t[:, None] * 0
    tl.store(o_ptr + offs, acc.to(tl.bfloat16), mask=t[:, None] == 0)


class NaiveNvfp4:
    """A program per route and 64 rows, eager around."""

    def __init__(self, weights: Weights, shared: Shared) -> None:
        self.weights = weights

    def call(self, case: Case) -> Call:
        x, ids, probabilities = case
        w13, s13, g13, w2, s2, g2 = self.weights
        s13, s2 = s13.view(torch.float8_e4m3fn), s2.view(torch.float8_e4m3fn)
        routes, rows, hidden = ids.numel(), w13.shape[1], x.shape[1]
        if routes > 1024:
            raise ValueError("one program row per route: not timed above 1024 routes")
        both = torch.empty(routes, rows, dtype=x.dtype, device=x.device)
        out = torch.empty(routes, hidden, dtype=x.dtype, device=x.device)

        def run() -> torch.Tensor:
            _naive_product[(rows // 64, routes)](
                x, w13, s13, g13, both, ids, rows, rows // 2, K=hidden, TOP_K=ids.shape[1], BN=64, BK=step_of(hidden)
            )  # fmt: skip
            gate, up = both.chunk(2, -1)
            middle = torch.nn.functional.silu(gate.clamp(max=CLAMP)) * up.clamp(-CLAMP, CLAMP)
            _naive_product[(hidden // 64, routes)](
                middle, w2, s2, g2, out, ids, hidden, hidden, K=rows // 2, TOP_K=1, BN=64, BK=step_of(rows // 2)
            )  # fmt: skip
            return (out.view(*ids.shape, hidden) * probabilities[..., None]).sum(1)

        return run
