"""What the contestants share: the layer's constants, the type of a closure, and padding of the intermediate size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from workload import Weights

CLAMP = 10.0
Call = Callable[[], torch.Tensor]
Shared = dict[str, Any]  # one per shape: what several contestants make from the same weights


def step_of(columns: int) -> int:
    """Columns that a naive kernel multiplies at once: at most 128, and no step reads beyond the last column."""
    return next(step for step in (128, 64, 32) if columns % step == 0)


def pad_intermediate(weights: Weights, multiple: int) -> Weights:
    """Weights with the intermediate size rounded up to `multiple`: codes 0 and scales 1 (byte 127), which add nothing.

    Gate rows and up rows of w13 are padded separately. Without need of padding the same tensors come back.
    """
    w13, s13, w2, s2 = weights
    experts, rows, _ = w13.shape
    inter = rows // 2
    extra = -inter % multiple
    if not extra:
        return weights

    def pad_rows(t: torch.Tensor, value: int) -> torch.Tensor:
        halves = t.view(experts, 2, inter, t.shape[2])
        return torch.nn.functional.pad(halves, (0, 0, 0, extra), value=value).view(experts, 2 * (inter + extra), -1)

    def pad_columns(t: torch.Tensor, per_byte: int, value: int) -> torch.Tensor:
        return torch.nn.functional.pad(t, (0, extra // per_byte), value=value)

    return pad_rows(w13, 0), pad_rows(s13, 127), pad_columns(w2, 2, 0), pad_columns(s2, 32, 127)
