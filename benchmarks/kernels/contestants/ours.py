"""This project's kernel."""

from __future__ import annotations

import torch
from workload import Case, Weights

from sglang_sm120.kernels.sm120 import fp4_moe as moe

from .common import CLAMP, Call, Shared


class Ours:
    """This project's layer; its modes share one repacked copy of the weights."""

    def __init__(
        self, weights: Weights, shared: Shared, activation: str = "bf16", batch_invariant: bool = False
    ) -> None:
        if "ours" not in shared:
            prepare = moe.prepare_nvfp4 if len(weights) == 6 else moe.prepare_mxfp4
            shared["ours"] = prepare(*(t.clone() for t in weights))
        self.w = shared["ours"]
        self.options = {"activation": activation, "batch_invariant": batch_invariant}

    def call(self, case: Case) -> Call:
        x, ids, probabilities = case
        out = torch.empty_like(x)
        return lambda: moe.fp4_moe(x, self.w, ids, probabilities, swiglu_limit=CLAMP, out=out, **self.options)
