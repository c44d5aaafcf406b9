"""MXFP4 mixture-of-experts layer (W4A16, W4A8) in Triton: ../README.md explains layout, regimes and limits."""

from . import reference
from .api import mxfp4_moe
from .prepare import PreparedWeights, prepare_weights, restore_weights
from .warming import warm_up

__all__ = ["PreparedWeights", "mxfp4_moe", "prepare_weights", "reference", "restore_weights", "warm_up"]
