"""MXFP4 mixture-of-experts layer (W4A16, W4A8) in Triton: ../README.md explains layout, regimes and limits."""

from . import reference
from .layer import fp4_moe
from .warming import warm_up
from .weights.repack import PreparedWeights, prepare_mxfp4, restore, scales_are_wide

__all__ = ["PreparedWeights", "fp4_moe", "prepare_mxfp4", "reference", "restore", "scales_are_wide", "warm_up"]
