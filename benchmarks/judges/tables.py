"""Number formats, value by value: ml_dtypes' e2m1, e8m0 and e4m3."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from benchmarks.judges.verdicts import Row, row, share_unequal
from sglang_sm120.kernels.sm120.fp4_moe import reference


def theirs(name: str, count: int) -> torch.Tensor:
    """float64 [count]: the value of each bit pattern."""
    patterns = np.arange(count, dtype=np.uint8)
    return torch.from_numpy(patterns.view(getattr(ml_dtypes, name)).astype(np.float64))


def ours() -> dict[str, torch.Tensor]:
    """Type's name in ml_dtypes -> the values that this project reads, float64."""
    codes, byte = torch.arange(16, dtype=torch.uint8), torch.arange(256, dtype=torch.uint8)
    one_e8m0, one_e4m3 = (torch.full((n, 1), v, dtype=torch.uint8) for n, v in ((16, 127), (16, 0x38)))
    pair = codes[:, None].expand(16, 16).contiguous()  # 32 codes a row: the low ones are the pattern's
    e2m1 = reference.dequantize(pair, one_e8m0)[:, 0]
    assert torch.equal(reference.dequantize_nvfp4(pair[:, :8].contiguous(), one_e4m3)[:, 0], e2m1)
    ones = torch.full((256, 8), 0x22, dtype=torch.uint8)
    return {
        "float4_e2m1fn": e2m1,
        "float8_e8m0fnu": reference.scale_to_float64(byte),
        "float8_e4m3fn": reference.dequantize_nvfp4(ones, byte[:, None])[:, 0],
    }


def verdicts() -> list[Row]:
    found = []
    for name, values in ours().items():
        right = theirs(name, len(values))
        wrong = {
            "halves swapped": share_unequal(values, right.roll(len(right) // 2), True),
            "one binade": share_unequal(values, 2 * right, True),
        }
        found.append(row("ml_dtypes", name, "table", share_unequal(values, right, True), 0.0, wrong))
    return found
