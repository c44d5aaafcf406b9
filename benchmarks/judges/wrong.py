"""References that are wrong on purpose: a judge that cannot tell them from the right one has judged nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.judges.stored import Stored


def swapped_codes(w: Stored) -> Stored:
    """The two codes of each byte exchanged."""
    return w._replace(codes=w.codes << 4 | w.codes >> 4)


def one_binade_up(w: Stored) -> Stored:
    """Scales twice as large, those of NVFP4 through the global ones."""
    if w.factors is None:
        return w._replace(scale=w.scale + 1)
    return w._replace(factors=2 * w.factors)


def first_global_for_both(w: Stored) -> Stored:
    """Gate's global scale for the up half too."""
    assert w.factors is not None
    return w._replace(factors=w.factors[:1].expand(2))


def of_weights(w: Stored) -> dict[str, Callable[[Stored], Stored]]:
    """Name -> what is wrong with a decoder that reads a matrix so."""
    always: dict[str, Callable[[Stored], Stored]] = {"halves swapped": swapped_codes, "one binade": one_binade_up}
    return always if w.factors is None else always | {"one global for both halves": first_global_for_both}


def swapped_halves(w13: torch.Tensor) -> torch.Tensor:
    """[E, 2 I, H]: up where gate belongs, and the reverse."""
    return torch.cat(w13.chunk(2, 1)[::-1], 1)
