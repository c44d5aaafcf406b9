"""What is asked of a case: numbers against float64, equal bits, graphs, bad tokens, offsets beyond 32 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cases import BEYOND, Case, Layer

# Of a result's norm: three roundings to bf16 (intermediate, one row a route, output), each 2**-9 / sqrt(3) of a value
# at most.
BOUND = 3e-3
# mxfp8 is held to the oracle that rounds alike. Of an intermediate value next to the middle between two e4m3 values the
# oracle may take one and the kernel the other. At the clamp they are 8 apart (16 a little above), the RMS is about 7.5.
ONE_VALUE = 2.0
# Of a single value, or of the RMS where that is larger: twelve times the bound of the norm. Five are the largest
# of 4e6 normal values; the rest are routes that cancel each other and bring the roundings of larger numbers (2.5e-2 was
# the most in 464 cases). For mxfp8 one such intermediate value on the largest weight, on the narrowest layer.
SINGLE = {"bf16": 12 * BOUND, "mxfp8": 0.25}
OUTSIDE = (-(2**31), -7, 2**31 - 1)  # ids of nobody, beside the number of experts itself


def random_weights(layer: Layer, kind: str, device: Any) -> tuple[Any, ...]:
    """Random codes and scales in the checkpoint's layout; gates have an RMS of about 3, so that some meet the clamp."""
    import torch

    g = torch.Generator(device=device).manual_seed(layer.hidden + layer.inter)
    e, h, i = layer.experts, layer.hidden, layer.inter

    def draw(low: int, high: int, *shape: int) -> Any:
        return torch.randint(low, high, shape, generator=g, dtype=torch.uint8, device=device)

    def multipliers(columns: int, *shape: int) -> Any:
        return (0.5 + torch.rand(shape, generator=g, device=device)) / columns**0.5

    if kind == "nvfp4":  # scale bytes from 0.5 to 1.875
        w13, s13 = draw(0, 256, e, 2 * i, h // 2), draw(0x30, 0x40, e, 2 * i, h // 16)
        w2, s2 = draw(0, 256, e, h, i // 2), draw(0x30, 0x40, e, h, i // 16)
        return w13, s13, multipliers(h, e, 2), w2, s2, multipliers(i, e)
    middle = 127 - (h.bit_length() + 1) // 2
    w13, s13 = draw(0, 256, e, 2 * i, h // 2), draw(middle - 1, middle + 3, e, 2 * i, h // 32)
    return w13, s13, draw(0, 256, e, h, i // 2), draw(middle - 1, middle + 3, e, h, i // 32)


def random_inputs(layer: Layer, tokens: int, device: Any, seed: int = 0) -> tuple[Any, Any, Any]:
    """(x, ids, weights): distinct experts for each token."""
    import torch

    g = torch.Generator(device=device).manual_seed(1000 * seed + tokens)
    x = torch.randn(tokens, layer.hidden, generator=g, device=device).bfloat16()
    ids = torch.rand(tokens, layer.experts, generator=g, device=device).topk(layer.top_k).indices.to(torch.int32)
    weights = torch.rand(tokens, layer.top_k, generator=g, device=device) + 0.1
    return x, ids, weights / weights.sum(-1, keepdim=True)


def wanted(cases: Sequence[Case], inputs: Sequence[tuple[Any, Any, Any]], tensors: tuple[Any, ...]) -> list[Any]:
    """float64 results of cases of one layer and format; those that round and clamp alike share a pass over experts."""
    import torch

    from sglang_sm120.kernels.sm120.fp4_moe import reference

    found: list[Any] = [None] * len(cases)
    for rule in dict.fromkeys((c.mode, c.unclamped) for c in cases):
        chosen = [n for n, c in enumerate(cases) if (c.mode, c.unclamped) == rule]
        x, ids, weights = (torch.cat([inputs[n][part] for n in chosen]) for part in range(3))
        more: dict[str, Any] = {"swiglu_limit": None if rule[1] else 10.0}
        if cases[0].format == "mxfp4":
            more["activation"] = "mxfp8" if rule[0] == "mxfp8" else "exact"
        y = getattr(reference, f"{cases[0].format}_moe")(x, *tensors, ids, weights, **more)
        for n, part in zip(chosen, y.split([cases[n].tokens for n in chosen]), strict=True):
            found[n] = part
    return found


def prepare(kind: str, tensors: tuple[Any, ...]) -> Any:
    """The tensors as the kernels read them, in place."""
    from sglang_sm120.kernels.sm120 import fp4_moe

    return getattr(fp4_moe, f"prepare_{kind}")(*tensors)


def bound(case: Case) -> float:
    """Of the relative error."""
    flip = ONE_VALUE / (case.tokens * case.layer.top_k * case.layer.inter) ** 0.5
    return BOUND + (flip if case.mode == "mxfp8" else 0.0)


def _run(case: Case, w: Any, inputs: tuple[Any, Any, Any], out: Any = None) -> Any:
    from sglang_sm120.kernels.sm120 import fp4_moe

    x, ids, weights = inputs
    return fp4_moe.fp4_moe(x, w, ids, weights, out=out, **case.call)


def same_bits(a: Any, b: Any) -> bool:
    """Whether bf16 tensors have the same bits, NaN included."""
    import torch

    return bool(torch.equal(a.view(torch.int16), b.view(torch.int16)))


def numbers(case: Case, w: Any, inputs: tuple[Any, Any, Any], want: Any) -> tuple[dict[str, Any], list[str]]:
    """(errors beside their bounds, what is wrong): into an output full of NaN, and once more for the bits."""
    import torch

    out = torch.full_like(inputs[0], float("nan"))
    y = _run(case, w, inputs, out).double()
    again = _run(case, w, inputs)
    error = float((y - want).norm() / want.norm())
    single = float(((y - want).abs() / torch.maximum(want.abs(), want.square().mean().sqrt())).max())
    row = {"error": error, "bound": bound(case), "single": single, "single_bound": SINGLE[case.mode]}
    wrong = []
    if not error <= bound(case):  # NaN is wrong too
        wrong.append(f"relative error {error:.1e} is above {bound(case):.1e}")
    if not single <= SINGLE[case.mode]:
        wrong.append(f"a value is off by {single:.1e} of its size, above {SINGLE[case.mode]:.0e}")
    if not same_bits(out, again):
        wrong.append("a second run gives other bits")
    return row, wrong


def bad_tokens(case: Case, w: Any, inputs: tuple[Any, Any, Any]) -> list[str]:
    """What is wrong when one token is NaN, and when ids are nobody's and their weights NaN."""
    import torch

    x, ids, weights = inputs
    clean, spoilt, at = _run(case, w, inputs), x.clone(), case.tokens // 2
    spoilt[at] = float("nan")
    y = _run(case, w, (spoilt, ids, weights))
    others = torch.arange(case.tokens, device=x.device) != at
    wrong = []
    if not same_bits(y[others], clean[others]):
        wrong.append("a token of NaN changes other tokens")
    if not bool(y[at].isnan().all()):
        wrong.append("a token of NaN has numbers")
    absent = ids.clone()
    absent[::2, 0] = -1
    without, heavy = _run(case, w, (x, absent, weights)), weights.clone()
    heavy[::2, 0] = float("nan")
    for outside in (*OUTSIDE, case.layer.experts):
        absent[::2, 0] = outside
        if not same_bits(_run(case, w, (x, absent, heavy)), without):
            wrong.append(f"an expert id of {outside} counts")
    return wrong


def replayed(case: Case, w: Any, replays: int, device: Any) -> list[str]:
    """What is wrong when a CUDA graph of the call is replayed with other tokens and routings each time."""
    import torch

    sets = [random_inputs(case.layer, case.tokens, device, seed) for seed in range(1, 6)]
    want = [_run(case, w, given) for given in sets]
    held = tuple(t.clone() for t in sets[0])
    out = torch.empty_like(held[0])
    _run(case, w, held, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _run(case, w, held, out)
    differ = torch.zeros((), dtype=torch.int64, device=device)
    for n in range(replays):
        for old, new in zip(held, sets[n % len(sets)], strict=True):
            old.copy_(new)
        out.fill_(float("nan"))
        graph.replay()
        differ += (out.view(torch.int16) != want[n % len(sets)].view(torch.int16)).any()
    number = int(differ)
    return [f"{number} of {replays} replays of a graph give other bits"] if number else []


def beyond_32_bits(
    case: Case, w: Any, last: tuple[Any, ...], device: Any
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """`numbers` with all tokens on the last experts, whose weights begin behind 2**31 (w13: 2**32) bytes.

    last: those experts' tensors in the checkpoint's layout.
    """
    few = len(last[0])
    layer = Layer(BEYOND.name, few, case.layer.hidden, case.layer.inter, case.layer.top_k)
    x, ids, weights = random_inputs(layer, case.tokens, device)
    want = wanted([case], [(x, ids, weights)], last)[0]
    return numbers(case, w, (x, ids + case.layer.experts - few, weights), want)
