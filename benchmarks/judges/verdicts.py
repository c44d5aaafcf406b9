"""What a judge says, and when that counts."""

from __future__ import annotations

from typing import Any

import torch

Row = dict[str, Any]
LEAST = 0.1  # a figure of a wrong reference is at least this, and twice the limit


def share_unequal(a: torch.Tensor, b: torch.Tensor, signed: bool = False) -> float:
    """Of the elements, those whose values differ. NaN equals NaN, and without `signed` 0 equals -0."""
    same = (a.double() == b.double()) & ((a.signbit() == b.signbit()) | (not signed)) | (a.isnan() & b.isnan())
    return 1 - float(same.double().mean())


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """L2 of the difference over that of b."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def row(judge: str, weights: str, what: str, figure: float, limit: float, wrong: dict[str, float], **more: Any) -> Row:
    """good: the figure keeps its limit, and every wrong reference's is far beyond."""
    apart = all(value > max(2 * limit, LEAST) for value in wrong.values())
    return {
        "judge": judge, "format": weights, "what": what, "figure": figure, "limit": limit, "wrong": wrong, **more,
        "good": figure <= limit and apart and bool(wrong),
    }  # fmt: skip
