"""The same call runs in the interpreter on a CPU without disturbing Triton for others in the process."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.runtime.jit import JITFunction

from sglang_sm120.kernels.sm120 import mxfp4_moe as moe


def test_an_interpreted_call_leaves_triton_as_it_was():
    before = {name: value for name, value in vars(tl).items() if callable(value)}
    members = {name: value for name, value in vars(tl.tensor).items() if not name.startswith("__")}
    w13, w2 = torch.zeros(1, 64, 16, dtype=torch.uint8), torch.zeros(1, 32, 16, dtype=torch.uint8)
    scale = torch.full((1, 64, 1), 127, dtype=torch.uint8)
    w = moe.prepare_weights(w13, scale, w2, scale[:, :32].clone())
    x, ids = torch.ones(1, 32, dtype=torch.bfloat16), torch.zeros(1, 1, dtype=torch.int32)
    assert (moe.mxfp4_moe(x, w, ids, torch.ones(1, 1)) == 0).all()
    assert {name: value for name, value in vars(tl).items() if callable(value)} == before
    assert {name: value for name, value in vars(tl.tensor).items() if not name.startswith("__")} == members
    assert isinstance(tl.sum, JITFunction)


def test_every_kernel_takes_its_arguments_before_its_constants():
    """The direct launch hands arguments and then constants to the compiled kernel, in this order."""
    from sglang_sm120.kernels.sm120.mxfp4_moe import gemm, reduce, routing, runtime

    found = [k for m in (gemm, reduce, routing) for k in vars(m).values() if isinstance(k, runtime.Kernel)]
    assert len(found) >= 6
    for kernel in found:
        constant = [p.is_constexpr for p in kernel.compiled.params]
        assert constant == sorted(constant), kernel.__name__
        counts = {p.name for p in kernel.compiled.params if p.do_not_specialize}
        assert counts == {p.name for p in kernel.compiled.params} & set(runtime.COUNTS)
