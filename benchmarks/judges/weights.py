"""Weights: other projects' decoders must read what ours reads, and ours what their quantisers write."""

from __future__ import annotations

import torch

from benchmarks.judges import wrong
from benchmarks.judges.decoders import PROJECTS, Judge, whole
from benchmarks.judges.stored import GROUPS, Stored, read, scales
from benchmarks.judges.verdicts import Row, row, share_unequal

ROWS, COLUMNS = 64, 512
# Powers of two, so that no order of multiplications rounds: gate's and up's, four times apart.
FACTORS = (2.0**-9, 2.0**-7)
# e2m1 has one bit of mantissa, so a value is rounded by at most a quarter of itself, or of its scale below that. Beyond
# 6 scales the OCP's rule clips: 8 becomes 6.
NEAREST = 0.25


def random_stored(weights: str, seed: int = 0) -> Stored:
    """All codes under finite scales whose products bf16 and float32 hold exactly."""
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (ROWS, COLUMNS // 2), generator=g, dtype=torch.uint8)
    low, high = (100, 150) if weights == "mxfp4" else (1, 0x7F)
    scale = torch.randint(low, high, (ROWS, COLUMNS // GROUPS[weights]), generator=g, dtype=torch.uint8)
    return Stored(codes, scale, torch.tensor(FACTORS) if weights == "nvfp4" else None)


def decoder(judge: Judge) -> Row:
    """The share of the elements that are read differently."""
    w = random_stored(judge.format)
    theirs = whole(judge, w)
    others = {name: share_unequal(read(w), whole(judge, make(w))) for name, make in wrong.of_weights(w).items()}
    return row(judge.name, judge.format, "decoder", share_unequal(read(w), theirs), 0.0, others)


def distance(w: Stored, x: torch.Tensor, scale: torch.Tensor) -> float:
    """The largest error of what we read as x was, as a part of the value or, if that is larger, of its scale."""
    return float(((read(w) - x.double()).abs() / torch.maximum(x.double().abs(), scale)).max())


def quantised(judge: Judge, x: torch.Tensor) -> Stored:
    """x [N, K] as the project stores it; NVFP4's halves apart, each with the least power of two that holds it."""
    assert judge.quantise is not None
    if judge.format == "mxfp4":
        return judge.quantise(x, torch.ones(()))
    halves = []
    for half in x.chunk(2):
        factor = torch.exp2(torch.ceil(torch.log2(half.abs().max() / (6 * 448))))
        halves.append(judge.quantise(half.contiguous(), factor))
    codes, scale, factors = zip(*halves, strict=True)
    return Stored(torch.cat(codes), torch.cat(scale), torch.stack([f.reshape(()) for f in factors]))


def quantiser(judge: Judge) -> list[Row]:
    """What it writes: read as its own decoder reads it, and near to what was to be written."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, COLUMNS, generator=g) * torch.tensor([0.02, 0.1]).repeat_interleave(ROWS // 2)[:, None]
    w = quantised(judge, x)
    variants = {name: make(w) for name, make in wrong.of_weights(w).items()}
    same = {name: share_unequal(read(other), whole(judge, w)) for name, other in variants.items()}
    near = {name: distance(other, x, scales(w)) for name, other in variants.items()}
    return [
        row(judge.name, judge.format, "quantiser and decoder", share_unequal(read(w), whole(judge, w)), 0.0, same),
        row(judge.name, judge.format, "quantiser", distance(w, x, scales(w)), NEAREST, near),
    ]


def verdicts() -> list[Row]:
    found = []
    for project in PROJECTS:
        for judge in project():
            found.append(decoder(judge))
            found += quantiser(judge) if judge.quantise else []
    return found
