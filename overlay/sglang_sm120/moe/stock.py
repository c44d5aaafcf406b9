"""What the installed SGLang does by itself on this architecture, observed in a child process.

Asked only when upstream is not what a patch was proven on: a fault that upstream has mended then shows by what SGLang
does with a hybrid checkpoint, not by what its source looks like. The child resolves a launch and builds the MoE layers
as `plan --stock` does, from headers that are written for the purpose; this process imports nothing for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sglang_sm120 import gpu, settings
from sglang_sm120.moe import known_kernels
from sglang_sm120.upstream.server_flags import Role

OBSERVED = "SGLANG_SM120_OBSERVED"  # the answer, for the processes that this one starts
TIMEOUT_S = 300
LIMIT = 10.0


@dataclass(frozen=True)
class StockLayer:
    """What stock SGLang gives a kind of layer: its method, its runner, whether the experts are packed FP4, faults."""

    method: str
    runner: str | None
    packed: bool
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Observed:
    """What the child saw, as far as it got; `clamp` is what reaches FlashInfer: alpha, beta and limit of SwiGLU."""

    target: StockLayer | None = None
    draft: StockLayer | None = None
    clamp: tuple[float, ...] | None = None


def mended_layer(role: Role) -> str | None:
    """How SGLang gives a hybrid checkpoint's target or draft kernels that the GPU has; None if it does not."""
    found = gpu.detect(os.environ.get(settings.ASSUME.name) or None)
    if found is None:
        return None
    layer = observed().target if role == "target" else observed().draft
    if layer is None or layer.faults:
        return None
    if known_kernels.fault(layer.method, layer.runner, found.capability[0], layer.packed) is not None:
        return None
    return f"this SGLang runs a hybrid checkpoint's {role} on {layer.runner} ({layer.method}) by itself"


def mended_clamp() -> str | None:
    """How SGLang hands the clamp to FlashInfer's NVFP4 kernel; None if it does not."""
    if observed().clamp != (1.0, 0.0, LIMIT):
        return None
    return "this SGLang hands swiglu_limit to the kernel itself"


@lru_cache(maxsize=1)
def observed() -> Observed:
    """Asked once for this process and those that it starts."""
    known = os.environ.get(OBSERVED)
    if known is None:
        known = os.environ[OBSERVED] = _ask_child()
    raw = json.loads(known)
    clamp = raw.get("clamp")
    return Observed(_layer(raw.get("target")), _layer(raw.get("draft")), None if clamp is None else tuple(clamp))


def _layer(raw: dict[str, Any] | None) -> StockLayer | None:
    return None if raw is None else StockLayer(raw["method"], raw["runner"], raw["packed"], tuple(raw["faults"]))


def _ask_child() -> str:
    found = gpu.detect(os.environ.get(settings.ASSUME.name) or None)
    request = {"arch": found.arch if found else "sm120"}
    environment = os.environ | {settings.OFF.name: "0"}
    child = subprocess.run(
        [sys.executable, "-m", "sglang_sm120.commands.plan.observe"],
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
        check=False,
    )
    return child.stdout if child.stdout.startswith("{") else "{}"
