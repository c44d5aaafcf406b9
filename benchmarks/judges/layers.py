"""Whole layers: this project's kernel against transformers' DeepseekV4Experts and FlashInfer's references.

The kernel runs in Triton's interpreter. Weights are written and decoded by ModelOpt, so nothing of the other side is
this project's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from benchmarks.judges import wrong
from benchmarks.judges.decoders import Judge, modelopt, whole
from benchmarks.judges.stored import Stored
from benchmarks.judges.verdicts import Row, relative, row
from benchmarks.judges.weights import quantised
from sglang_sm120.kernels.sm120 import fp4_moe as moe

LIMIT = 10.0
SHAPES = ((4, 256, 96, 2, 1), (4, 256, 128, 2, 9), (2, 128, 160, 1, 40))  # experts, hidden, intermediate, top_k, tokens
# Roundings to bf16 of at most 2**-9 each in the kernel: intermediate, perhaps partial results, output. NVFP4: twice
# that, because the few values of a small layer partly cancel (as in the kernel's tests).
ROUNDINGS = {"mxfp4": 3**0.5 * 2.0**-9, "nvfp4": 2 * 3**0.5 * 2.0**-9}
THEIR_ROUNDING = 2.0**-9  # FlashInfer's references give bf16


class Layer(NamedTuple):
    """Experts as stored (first and second matrix of each), a call of them, and the decoder of the weights."""

    first: list[Stored]
    second: list[Stored]
    x: torch.Tensor
    ids: torch.Tensor
    probabilities: torch.Tensor
    judge: Judge


def layer(judge: Judge, experts: int, hidden: int, inter: int, top_k: int, tokens: int) -> Layer:
    """Random values, quantised by the judge. Gates and ups reach the clamp; up's global scale is four times gate's."""
    g = torch.Generator().manual_seed(tokens)

    halves = torch.tensor([1.0, 4.0]).repeat_interleave(inter)[:, None]
    first = [quantised(judge, torch.randn(2 * inter, hidden, generator=g) * 0.15 * halves) for _ in range(experts)]
    second = [second_matrix(judge, torch.randn(hidden, inter, generator=g) * 0.05) for _ in range(experts)]
    x = torch.randn(tokens, hidden, generator=g).bfloat16()
    ids = torch.rand(tokens, experts, generator=g).topk(top_k).indices.to(torch.int32)
    p = torch.rand(tokens, top_k, generator=g) + 0.1
    return Layer(first, second, x, ids, p / p.sum(-1, keepdim=True), judge)


def second_matrix(judge: Judge, values: torch.Tensor) -> Stored:
    """With one global scale, 2**-13."""
    assert judge.quantise is not None
    factor = torch.tensor(2.0**-13)
    w = judge.quantise(values, factor)
    return w if w.factors is None else w._replace(factors=factor.expand(2))


def ours(w: Layer, limit: float | None) -> torch.Tensor:
    """bf16 [T, H]: the kernel's output."""
    codes, scales = ([torch.stack([getattr(s, n) for s in part]).clone() for part in (w.first, w.second)]
                     for n in ("codes", "scale"))  # fmt: skip
    if w.judge.format == "mxfp4":
        prepared = moe.prepare_mxfp4(codes[0], scales[0], codes[1], scales[1])
    else:
        both = torch.stack([s.factors for s in w.first])
        one = torch.stack([s.factors[0] for s in w.second])
        prepared = moe.prepare_nvfp4(codes[0], scales[0], both, codes[1], scales[1], one)
    out = torch.full_like(w.x, float("nan"))
    return moe.fp4_moe(w.x, prepared, w.ids, w.probabilities, swiglu_limit=limit, out=out)


def decoded(w: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [E, 2 I, H], [E, H, I] by the judge's decoder."""
    first, second = (torch.stack([whole(w.judge, s).float() for s in part]) for part in (w.first, w.second))
    return first, second


def transformers_experts(w: Layer, w13: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    """float64, by the module that transformers runs DeepSeek-V4's experts with."""
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Experts

    experts, hidden, inter = w2.shape
    config = DeepseekV4Config(hidden_size=hidden, swiglu_limit=LIMIT)
    config.num_local_experts, config.intermediate_size = experts, inter
    module = DeepseekV4Experts(config).double()
    with torch.no_grad():
        module.gate_up_proj.copy_(w13)
        module.down_proj.copy_(w2)
        return module(w.x.double(), w.ids.long(), w.probabilities.double())


def flashinfer_clamped(w: Layer, w13: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    """bf16, by the reference of its unquantised experts, which takes up before gate."""
    from flashinfer.trace.templates.moe import _moe_bf16_run_experts

    args = w.x, wrong.swapped_halves(w13), w2, w.probabilities, w.ids.long(), 0, len(w2)
    return _moe_bf16_run_experts(*args, gemm1_alpha=1.0, gemm1_beta=0.0, gemm1_clamp_limit=LIMIT)


def flashinfer_packed(w: Layer) -> torch.Tensor:
    """bf16, by the reference of its FP4 experts, from MXFP4's codes and scales; it has no clamp."""
    from flashinfer.trace.templates.moe import _fp4_moe_run_experts

    parts = []
    for stored in (w.first, w.second):
        parts += [torch.stack([s.codes for s in stored]), torch.stack([s.scale for s in stored])]
    codes, scale = (wrong.swapped_halves(t) for t in parts[:2])
    return _fp4_moe_run_experts(
        w.x, None, codes, scale, parts[2], parts[3], None, None, w.probabilities, w.ids.long(), 0, len(w.first)
    )


Variants = dict[str, Callable[[Layer], Layer]]


def variants(w: Layer) -> Variants:
    """What a wrong reference makes of the same layer."""
    found: Variants = {
        "halves swapped": lambda w: w._replace(first=[Stored(*map(swap, s)) for s in w.first]),
        "one binade": lambda w: w._replace(second=[wrong.one_binade_up(s) for s in w.second]),
    }
    if w.judge.format == "nvfp4":
        found["one global for both halves"] = lambda w: w._replace(
            first=[wrong.first_global_for_both(s) for s in w.first]
        )
    return found


def swap(t: torch.Tensor | None) -> Any:
    """Gate where up belongs."""
    return None if t is None else torch.cat(t.chunk(2)[::-1])


def compared(name: str, w: Layer, theirs: Callable[[Layer], torch.Tensor], limit: float | None, shape: Any) -> Row:
    y = ours(w, limit)
    others = {what: relative(y, theirs(make(w))) for what, make in variants(w).items()}
    allowed = ROUNDINGS[w.judge.format] + (THEIR_ROUNDING if name.startswith("FlashInfer") else 0)
    return row(name, w.judge.format, "layer", relative(y, theirs(w)), allowed, others, shape=shape)


def verdicts() -> list[Row]:
    found = []
    for judge, shape in itertools.product(modelopt(), SHAPES):
        w = layer(judge, *shape)
        found.append(compared("transformers", w, lambda v: transformers_experts(v, *decoded(v)), LIMIT, shape))
        found.append(compared("FlashInfer", w, lambda v: flashinfer_clamped(v, *decoded(v)), LIMIT, shape))
        if judge.format == "mxfp4":
            found.append(compared("FlashInfer, packed", w, flashinfer_packed, None, shape))
    return found
