"""What is run: published layers, the numbers of tokens at which their plans change, and the tiles that those use."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

MOST_TOKENS = 1500
TOKENS = (*range(1, MOST_TOKENS + 1), 2048, 3072, 4096)  # the last ones for prefill's widest groups
MODES = ("bf16", "mxfp8")
FORMATS = ("mxfp4", "nvfp4")
# Options of a kernel that are the layer's sizes or say nothing of the code.
_SIZES = {"TOP_K", "HIDDEN", "INTER", "EP", "K", "CHUNK", "BLOCKS", "PDL", "launch_pdl", "ASM", "WGMMA"}
_TILE = {"BN", "BT", "SB", "UNROLL", "STAGES", "num_warps"}


@dataclass(frozen=True)
class Layer:
    """The routed experts that one rank holds: how many, hidden and intermediate width, experts of a token."""

    name: str
    experts: int
    hidden: int
    inter: int
    top_k: int


# Narrow ones first: what is looked at closely is looked at where it costs least.
LAYERS = (
    Layer("V4-Flash TP8", 256, 4096, 256, 6),
    Layer("V4-Pro TP16", 384, 7168, 192, 6),
    Layer("V4.1 TP8", 384, 5120, 288, 6),
    Layer("V4-Flash TP4", 256, 4096, 512, 6),
    Layer("V4.1 TP4", 384, 5120, 576, 6),
    Layer("V4-Flash TP2", 256, 4096, 1024, 6),
    Layer("V4-Flash TP1", 256, 4096, 2048, 6),
    Layer("V4-Pro TP2", 384, 7168, 1536, 6),
)
# Weights of more than 2**31 and 2**32 bytes, the last experts behind them.
BEYOND = Layer("V4-Pro TP2, 400 experts", 400, 7168, 1536, 6)


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        layer: its sizes.
        tokens: of the batch.
        mode: activations, one of MODES.
        format: of the weights, one of FORMATS.
        invariant: with `batch_invariant`.
        unclamped: with `swiglu_limit=None`, which takes the kernels of more range.
    """

    layer: Layer
    tokens: int
    mode: str
    format: str = "mxfp4"
    invariant: bool = False
    unclamped: bool = False

    def __str__(self) -> str:
        more = " batch-invariant" * self.invariant + " unclamped" * self.unclamped
        return f"{self.layer.name} {self.format} {self.mode} T={self.tokens}{more}"

    @property
    def call(self) -> dict[str, Any]:
        """Keywords of `fp4_moe`."""
        limit = None if self.unclamped else 10.0
        return {"activation": self.mode, "batch_invariant": self.invariant, "swiglu_limit": limit}


def formats() -> tuple[str, ...]:
    """Those that the kernel package takes."""
    from sglang_sm120.kernels.sm120 import fp4_moe

    return tuple(f for f in FORMATS if hasattr(fp4_moe, f"prepare_{f}"))


def form(case: Case, device: Any) -> Any:
    """The `program.Form` of a case."""
    import torch

    from sglang_sm120.kernels.sm120 import fp4_moe
    from sglang_sm120.kernels.sm120.fp4_moe import layer
    from sglang_sm120.kernels.sm120.fp4_moe.host import program

    size, mxfp8 = case.layer, case.mode == "mxfp8"
    limit = layer.checked_limit(case.call["swiglu_limit"])
    more = {}
    if "format" in {f.name for f in dataclasses.fields(program.Form)}:
        more["format"] = getattr(fp4_moe, case.format.upper())
    return program.Form(
        device=torch.device(device), tokens=case.tokens, top_k=size.top_k, experts=size.experts, hidden=size.hidden,
        inter=size.inter, ids=torch.int32, x_stride=size.hidden, y_stride=size.hidden, y_aligned=True, limit=limit,
        factor=1.0, mxfp8=mxfp8, fp8=mxfp8 and program.has_native_fp8(torch.device(device)),
        batch_invariant=case.invariant, wide_scales=False, **more,
    )  # fmt: skip


def steps(case: Case, device: Any) -> list[Any]:
    """The kernels of a case."""
    from sglang_sm120.kernels.sm120.fp4_moe.host import program

    return program.steps(form(case, device))[0]


def plans(case: Case, device: Any) -> Iterator[tuple[Any, int]]:
    """(plan without its number of groups, tokens) for the first number of tokens of each plan of such a layer."""
    from sglang_sm120.kernels.sm120.fp4_moe.host import program

    first, seen = form(case, device), set()
    for tokens in TOKENS:
        plan = dataclasses.replace(program.plan(dataclasses.replace(first, tokens=tokens)), groups=0)
        if plan not in seen:
            seen.add(plan)
            yield plan, tokens


def kinds(layers: Iterable[Layer]) -> list[Case]:
    """One case for each layer, mode and format, and the two rarer calls on the first layer, all of one token."""
    layers, found = list(layers), []
    for weights in formats():
        modes = MODES if weights == "mxfp4" else MODES[:1]  # NVFP4 is W4A16 only
        found += [Case(layer, 1, mode, weights) for layer in layers for mode in modes]
        found += [Case(layers[0], 1, mode, weights, invariant=True) for mode in modes]
        found += [Case(layers[0], 1, mode, weights, unclamped=True) for mode in modes]
    return found


def enumerate_cases(layers: Iterable[Layer], sms: int, device: Any) -> dict[Case, frozenset[str]]:
    """Each case with the tiles that it uses, for a GPU of so many SMs as the planner now has them."""
    found: dict[Case, frozenset[str]] = {}
    for kind in kinds(layers):
        numbers = [tokens for _, tokens in plans(kind, device)]
        for tokens in (*numbers, MOST_TOKENS):
            case = dataclasses.replace(kind, tokens=tokens)
            found[case] = frozenset(tile_of(s) for s in steps(case, device))
    return found


def fewest(found: dict[Case, frozenset[str]]) -> dict[Case, frozenset[str]]:
    """Of these cases enough to use each tile once, the first that do."""
    kept: dict[Case, frozenset[str]] = {}
    used: set[str] = set()
    for case, tiles in found.items():
        if not tiles <= used:
            kept[case] = tiles
            used |= tiles
    return kept


def tile_of(step: Any) -> str:
    """The name of a compiled kernel apart from the layer's sizes, as `gate_up 32x8 SB2 3 stages 1 warp SCAN`."""
    o, words = step.options, [step.kernel.__name__]
    if "BN" in o:
        warps = o["num_warps"]
        words.append(f"{o['BN']}x{o['BT']} SB{o['SB']} {o['STAGES']} stages {warps} warp{'s' * (warps > 1)}")
        words += ["two steps"] * (o["UNROLL"] == 2) + _ends(step)
    elif "BT" in o:
        words.append(f"BT{o['BT']}")
    others = {k: v for k, v in o.items() if k not in _SIZES | _TILE}
    words += [k if v is True else f"{k}={v}" for k, v in others.items() if v is not False]
    words += [f"rows {a.dtype}".replace("torch.", "") for a in step.args if getattr(a, "name", "") == "o"]
    return " ".join(words)


def _ends(step: Any) -> list[str]:
    """Whether the loop has masks, and whether half a superblock follows."""
    o = step.options
    rows, columns = o["HIDDEN"], o["INTER"]
    if step.kernel.__name__ == "gate_up":
        rows, columns = 2 * o["INTER"], o["HIDDEN"]
    masked = columns // 64 % o["SB"] != 0 or rows % o["BN"] != 0
    return ["masked"] * masked + ["half a superblock"] * (columns % 64 != 0)
