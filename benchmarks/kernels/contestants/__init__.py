"""The kernels that bench_moe.py times: each is built from weights in the checkpoint's layout and gives closures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import metadata
from typing import Any

from workload import Weights

from .common import CLAMP, Call, Shared
from .flashinfer_sm90 import FlashInferSm90
from .humming_moe import Humming
from .naive import Naive
from .ours import Ours
from .sglang_marlin import Marlin
from .triton_kernels_moe import TritonKernels

__all__ = ["CLAMP", "CONTESTANTS", "Call", "Contestant", "Shared", "versions"]


@dataclasses.dataclass(frozen=True)
class Contestant:
    """How one is built, and what it costs before it can be timed."""

    make: Callable[[Weights, Shared], Any]
    packages: tuple[str, ...] = ()  # distributions whose versions the receipt records
    compiles: bool = False  # other kernels for other token counts, compiled when first called
    default: bool = True


CONTESTANTS = {
    "ours bf16": Contestant(Ours, compiles=True),
    "ours mxfp8": Contestant(lambda w, s: Ours(w, s, "mxfp8"), compiles=True),
    "ours bf16 batch-invariant": Contestant(
        lambda w, s: Ours(w, s, batch_invariant=True), compiles=True, default=False
    ),
    "marlin": Contestant(Marlin, ("sglang", "sglang-kernel")),
    "triton_kernels": Contestant(TritonKernels, ("sglang-kernel",), compiles=True),
    "flashinfer sm90 mixed": Contestant(FlashInferSm90, ("flashinfer-python", "apache-tvm-ffi")),
    "humming": Contestant(Humming, ("humming-kernels", "sglang"), compiles=True),
    "naive dot_scaled": Contestant(Naive, compiles=True),
}


def versions(names: list[str]) -> dict[str, str]:
    """Versions of the distributions that the named contestants come from; "not installed" where there is none."""
    found = {}
    for package in sorted({p for name in names for p in CONTESTANTS[name].packages}):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
