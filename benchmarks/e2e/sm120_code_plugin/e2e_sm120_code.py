"""A plugin of the end-to-end runs: on an SM90, `sm120_triton`'s kernels are those that Triton compiles for SM120.

E2E_SM120_CODE names the architecture and the SMs to plan for, as in `sm_120a:188`. SGLang's other kernels stay SM90's.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

VARIABLE = "E2E_SM120_CODE"
logger = logging.getLogger(__name__)


def register() -> None:
    """Called by SGLang in each of its processes; only one that prepares experts needs a GPU."""
    words = os.environ.get(VARIABLE)
    if not words:
        return
    from sglang_sm120.kernels.sm120 import fp4_moe

    warm_up, in_place = fp4_moe.warm_up, []

    def warm_up_sm120_code(*args: Any, **more: Any) -> Any:
        if not in_place:
            in_place.append(install(words))
        return warm_up(*args, **more)

    fp4_moe.warm_up = warm_up_sm120_code


def install(words: str) -> Any:
    """From now on, until the process ends, the kernel package compiles and plans for SM120.

    Raises:
        ValueError: the words are no architecture and number of SMs.
        WrongGpu: this is no SM90.
    """
    from sglang_sm120.commands.selftest.sm120_code.compiling import Sm120Code, sources_digest

    arch, _, sms = words.partition(":")
    if not sms.isdigit():
        raise ValueError(f"{VARIABLE} is {words!r}, expected an architecture and SMs, as in sm_120a:188")
    home = Path(os.environ.get("TRITON_CACHE_DIR", tempfile.gettempdir()))
    code = Sm120Code(arch, int(sms), home / f"sm120-code-{arch}-{sources_digest()}").__enter__()
    logger.warning("sm120_triton runs %s code, planned for %s SMs, on this SM90", arch, sms)
    return code


def pytest_sessionstart() -> None:
    """As a plugin of pytest (`-p e2e_sm120_code`): the kernel's own tests on SM120's code."""
    if words := os.environ.get(VARIABLE):
        install(words)
