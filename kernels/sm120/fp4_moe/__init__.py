"""Mixture-of-experts layer on MXFP4 (W4A16, W4A8) and NVFP4 (W4A16) weights in Triton: ../README.md explains it."""

from . import reference
from .layer import fp4_moe
from .warming import warm_up
from .weights.formats import MXFP4, NVFP4, Format
from .weights.prepare import check_nvfp4, is_mxfp4_cast, prepare_mxfp4, prepare_nvfp4, restore, scales_are_wide
from .weights.prepared import PreparedWeights

__all__ = [
    "MXFP4",
    "NVFP4",
    "Format",
    "PreparedWeights",
    "check_nvfp4",
    "fp4_moe",
    "is_mxfp4_cast",
    "prepare_mxfp4",
    "prepare_nvfp4",
    "reference",
    "restore",
    "scales_are_wide",
    "warm_up",
]
