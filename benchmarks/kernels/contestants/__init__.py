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
from .naive_nvfp4 import NaiveNvfp4
from .ours import Ours
from .sglang_marlin import Marlin
from .sglang_marlin_nvfp4 import MarlinNvfp4
from .triton_kernels_moe import TritonKernels

__all__ = ["CLAMP", "CONTESTANTS", "Call", "Contestant", "Shared", "versions"]


@dataclasses.dataclass(frozen=True)
class Contestant:
    """How one is built, what it costs before it can be timed, and the formats of weights that it takes."""

    make: Callable[[Weights, Shared], Any]
    packages: tuple[str, ...] = ()  # distributions whose versions the receipt records
    compiles: bool = False  # other kernels for other token counts, compiled when first called
    default: bool = True
    formats: tuple[str, ...] = ("mxfp4", "nvfp4")


CONTESTANTS = {
    "ours bf16": Contestant(Ours, compiles=True),
    "ours mxfp8": Contestant(lambda w, s: Ours(w, s, "mxfp8"), compiles=True, formats=("mxfp4",)),
    "ours bf16 batch-invariant": Contestant(
        lambda w, s: Ours(w, s, batch_invariant=True), compiles=True, default=False
    ),
    "marlin": Contestant(lambda w, s: (MarlinNvfp4 if len(w) == 6 else Marlin)(w, s), ("sglang", "sglang-kernel")),
    "triton_kernels": Contestant(TritonKernels, ("sglang-kernel",), compiles=True, formats=("mxfp4",)),
    "flashinfer sm90 mixed": Contestant(FlashInferSm90, ("flashinfer-python", "apache-tvm-ffi"), formats=("mxfp4",)),
    "humming": Contestant(Humming, ("humming-kernels", "sglang"), compiles=True),
    "naive dot_scaled": Contestant(Naive, compiles=True, formats=("mxfp4",)),
    "naive": Contestant(NaiveNvfp4, compiles=True, formats=("nvfp4",)),
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
