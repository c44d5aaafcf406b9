"""OpenAI's triton_kernels, from the sglang-kernel wheel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from workload import Case, Weights

from .common import CLAMP, Call, Shared


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

    def __init__(self, weights: Weights, shared: Shared) -> None:
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
