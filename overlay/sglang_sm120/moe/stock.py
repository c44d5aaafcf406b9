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
from functools import lru_cache
from typing import Any

from sglang_sm120 import gpu, settings
from sglang_sm120.moe import known_kernels

OBSERVED = "SGLANG_SM120_OBSERVED"  # the answer, for the processes that this one starts
TIMEOUT_S = 300
LIMIT = 10.0


def mended_layer(role: str) -> str | None:
    """How SGLang gives a hybrid checkpoint's `target` or `draft` kernels that the GPU has; None if it does not."""
    found = gpu.detect(os.environ.get(settings.ASSUME.name) or None)
    part = observed().get(role) if found else None
    if found is None or part is None or part["faults"]:
        return None
    if known_kernels.fault(part["method"], part["runner"], found.capability[0], part["packed"]) is not None:
        return None
    return f"this SGLang runs a hybrid checkpoint's {role} on {part['runner']} ({part['method']}) by itself"


def mended_clamp() -> str | None:
    """How SGLang hands the clamp to FlashInfer's NVFP4 kernel; None if it does not."""
    if observed().get("clamp") != [1.0, 0.0, LIMIT]:
        return None
    return "this SGLang hands swiglu_limit to the kernel itself"


@lru_cache(maxsize=1)
def observed() -> dict[str, Any]:
    """{"target", "draft", "clamp"} as far as the child got; asked once for this process and those that it starts."""
    known = os.environ.get(OBSERVED)
    if known is None:
        known = os.environ[OBSERVED] = _ask_child()
    return json.loads(known)


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
