"""What one writes first for NVFP4: codes and scales widened by arithmetic, `tl.dot` on bf16."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .common import step_of
from .naive import TwoProducts


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


class NaiveNvfp4(TwoProducts):
    """Of the first matrix gate's and up's rows have global scales of their own."""

    def product(self, second: bool, x: torch.Tensor, out: torch.Tensor, ids: torch.Tensor, top_k: int) -> None:
        w, s, g = self.weights[3:] if second else self.weights[:3]
        (routes, rows), columns = out.shape, x.shape[1]
        options = {"K": columns, "TOP_K": top_k, "BN": 64, "BK": step_of(columns)}
        per_global = rows if second else rows // 2
        scales = s.view(torch.float8_e4m3fn)
        _naive_product[(rows // 64, routes)](x, w, scales, g, out, ids, rows, per_global, **options)
