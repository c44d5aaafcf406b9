"""The kernels that bench_moe.py times: each is built from weights in the checkpoint's layout and gives closures."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from workload import Case, Weights

from sglang_sm120.kernels.sm120 import mxfp4_moe as moe

CLAMP = 10.0
Call = Callable[[], torch.Tensor]


class Ours:
    """This project's layer, weights repacked once for all its modes."""

    _prepared: tuple[int, moe.PreparedWeights] | None = None

    def __init__(self, weights: Weights, activation: str = "bf16", batch_invariant: bool = False) -> None:
        if Ours._prepared is None or Ours._prepared[0] != id(weights):
            Ours._prepared = (id(weights), moe.prepare_weights(*(t.clone() for t in weights)))
        self.w = Ours._prepared[1]
        self.options = {"activation": activation, "batch_invariant": batch_invariant}

    def call(self, case: Case) -> Call:
        x, ids, probabilities = case
        out = torch.empty_like(x)
        return lambda: moe.mxfp4_moe(x, self.w, ids, probabilities, swiglu_limit=CLAMP, out=out, **self.options)


@triton.jit
def _clamped_swiglu(input, limit):
    gate, up = tl.split(tl.reshape(input, (input.shape[0], input.shape[1] // 2, 2)))
    gate = tl.minimum(gate.to(tl.float32), limit)
    up = tl.minimum(tl.maximum(up.to(tl.float32), -limit), limit)
    return gate / (1 + tl.exp(-gate)) * up


class TritonKernels:
    """OpenAI's triton_kernels: matmul_ogs with the clamped SwiGLU in the first product's epilogue.

    Its routing metadata is made outside the timed region, which favours it: its top-k takes powers of two only.
    """

    def __init__(self, weights: Weights) -> None:
        from triton_kernels.matmul_ogs import FlexCtx, FnSpecs, FusedActivation, PrecisionConfig
        from triton_kernels.matmul_ogs_details import opt_flags
        from triton_kernels.numerics import InFlexData
        from triton_kernels.tensor import FP4, convert_layout, wrap_torch_tensor
        from triton_kernels.tensor_details import layout

        w13, s13, w2, s2 = weights
        self.experts, rows, _ = w13.shape
        self.inter = rows // 2

        def interleaved(t: torch.Tensor) -> torch.Tensor:
            return t.view(self.experts, 2, self.inter, -1).transpose(1, 2).reshape(t.shape)

        opt_flags.update_opt_flags_constraints({"split_k": 1})
        value, value_options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        scale, scale_options = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=8)
        self.w, self.precision = [], []
        for w, s in ((interleaved(w13), interleaved(s13)), (w2, s2)):
            codes = convert_layout(wrap_torch_tensor(w.transpose(-2, -1), dtype=FP4), value, **value_options)
            scales = convert_layout(wrap_torch_tensor(s.transpose(-2, -1)), scale, **scale_options)
            self.w.append(codes)
            self.precision.append(PrecisionConfig(weight_scale=scales, flex_ctx=FlexCtx(rhs_data=InFlexData())))
        self.activation = FusedActivation(
            FnSpecs("clamped_swiglu", _clamped_swiglu, ("limit",), reduction_n=2), (CLAMP,)
        )  # fmt: skip

    def call(self, case: Case) -> Call:
        from triton_kernels.matmul_ogs import GatherIndx, RoutingData, ScatterIndx, matmul_ogs
        from triton_kernels.tensor import make_ragged_tensor_metadata

        x, ids, probabilities = case
        flat = ids.flatten().long()
        combine = torch.argsort(flat, stable=True)
        dispatch, combine = torch.argsort(combine).int(), combine.int()
        ragged = make_ragged_tensor_metadata(torch.bincount(flat, minlength=self.experts).int(), flat.numel())
        gammas = probabilities.flatten()[combine.long()]
        routing = RoutingData(gammas, ragged.slice_sizes, self.experts, ids.shape[1], ragged)
        gather, scatter = GatherIndx(combine, dispatch), ScatterIndx(dispatch, combine)
        middle = torch.empty(1, flat.numel(), self.inter, device=x.device, dtype=x.dtype)
        out = torch.empty(1, *x.shape, device=x.device, dtype=x.dtype)

        def run() -> torch.Tensor:
            matmul_ogs(x, self.w[0], None, routing, gather_indx=gather, precision_config=self.precision[0],
                       fused_activation=self.activation, y=middle)  # fmt: skip
            matmul_ogs(middle[0], self.w[1], None, routing, scatter_indx=scatter, precision_config=self.precision[1],
                       gammas=routing.gate_scal, y=out)  # fmt: skip
            return out[0]

        return run


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

    def __init__(self, weights: Weights) -> None:
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
                x, w13, s13, both, ids, rows, K=hidden, TOP_K=ids.shape[1], BN=64, BK=128
            )  # fmt: skip
            gate, up = both.chunk(2, -1)
            middle = torch.nn.functional.silu(gate.clamp(max=CLAMP)) * up.clamp(-CLAMP, CLAMP)
            _naive_product[(hidden // 64, routes)](
                middle, w2, s2, out, ids, hidden, K=rows // 2, TOP_K=1, BN=64, BK=128
            )  # fmt: skip
            return (out.view(*ids.shape, hidden) * probabilities[..., None]).sum(1)

        return run


class Absent:
    """A contestant that is known but not part of this environment."""

    def __init__(self, package: str) -> None:
        __import__(package)
        raise NotImplementedError(f"{package} is installed, but no adapter was run with it")


CONTESTANTS: dict[str, Callable[[Weights], Ours | TritonKernels | Naive | Absent]] = {
    "ours bf16": Ours,
    "ours mxfp8": lambda w: Ours(w, "mxfp8"),
    "ours bf16 batch-invariant": lambda w: Ours(w, batch_invariant=True),
    "triton_kernels": TritonKernels,
    "naive dot_scaled": Naive,
    "marlin": lambda w: Absent("sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe"),
    "flashinfer sm90 mixed": lambda w: Absent("flashinfer.fused_moe"),
    "humming": lambda w: Absent("humming"),
}
