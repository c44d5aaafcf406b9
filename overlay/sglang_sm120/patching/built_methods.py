"""Whether each MoE layer gets the method of the runner that its flags name, seen where SGLang asks for it.

What acts below every plugin (a `sitecustomize` that wraps a class while SGLang imports it) can hand a layer another
method and pass the rest on; a launch then runs on that method without a word.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang_sm120.settings import RUNNER
from sglang_sm120.upstream import built_layers, server_flags

logger = logging.getLogger("sglang_sm120")
_PACKAGE = __name__.partition(".")[0]
_SAID: set[tuple[str, str]] = set()


def watch(made: Any) -> None:
    """Look at the methods that SGLang's quantization configuration of a model with FP4 experts gives from now on."""
    if not hasattr(made, "__dict__"):
        return
    original = made.get_quant_method

    def get_quant_method(layer: Any, prefix: str) -> Any:
        method = original(layer, prefix)
        if built_layers.is_fused_moe(layer) and server_flags.layer_runner(prefix) == RUNNER:
            _compare(prefix, type(method))
        return method

    made.get_quant_method = get_quant_method


def _compare(prefix: str, method: type) -> None:
    role = server_flags.role(prefix)
    if method.__module__.partition(".")[0] == _PACKAGE or (role, method.__name__) in _SAID:
        return
    _SAID.add((role, method.__name__))
    logger.warning(
        "The flags give the %s %s, and %s got %s: something that acts after sglang-sm120 decides (a sitecustomize, a "
        "module on PYTHONPATH); `sglang-sm120 doctor` names what it finds",
        role,
        RUNNER,
        prefix,
        method.__name__,
    )
