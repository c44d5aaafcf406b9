"""The entry point: SGLang calls `register()` early in each process that it starts.

SGLang's loader logs and swallows every `Exception` of a plugin and goes on with stock kernels. On SM120 that would end
in a crash after minutes of loading, or in wrong numbers; so whatever goes wrong here leaves as `SystemExit`. A process
that catches it (a notebook) cannot launch SGLang any more: SGLang loads plugins once, and patches may be half applied.
"""

from __future__ import annotations

import logging
import sys

from sglang_sm120 import gpu, settings
from sglang_sm120.patches import PATCHES
from sglang_sm120.patching import records, replace
from sglang_sm120.patching.records import Status

logger = logging.getLogger("sglang_sm120")
_LOADER = "sglang.srt.plugins"
_registered = False
_stopped: str | None = None  # with what problem a launch of this process ended


def register() -> None:
    """Read the settings, look at the GPU, and apply the patches if it is an SM120 or SM121.

    Does nothing on other GPUs, and nothing the second time.

    Raises:
        SystemExit: a setting is bad, or a patch does not fit the installed SGLang. The message says what to do.
    """
    global _registered
    if _registered:
        return
    if _stopped is not None:
        raise stop(f"{_stopped} (an earlier launch in this process ended with that; restart the Python process)")
    try:
        chosen = settings.read([p.name for p in PATCHES])
    except settings.SettingError as error:
        raise stop(error) from error
    for warning in chosen.warnings:
        logger.warning(warning)
    if not chosen.enabled:
        logger.warning(f"sglang-sm120 is off ({settings.OFF.name}=0): stock SGLang")
    found = gpu.detect(chosen.assume) if chosen.enabled else None
    if found is not None and found.mixed_with_sm12x:
        logger.warning(
            f"sglang-sm120: the visible GPUs differ; routing MoE layers for {found.name} ({found.arch}), the first in "
            "PCI order. If SGLang is to run on others, name them in CUDA_VISIBLE_DEVICES"
        )
    reason = why_inactive(chosen, found)
    if reason is not None:
        records.set_all(PATCHES, Status.NOT_APPLICABLE, reason)
    else:
        _apply(chosen)
    _registered = True


def why_inactive(chosen: settings.Settings, found: gpu.Gpu | None) -> str | None:
    """Why no patch applies with these settings on this GPU; None where they do."""
    if not chosen.enabled:
        return f"{settings.OFF.name}=0"
    if found is None:
        return "no NVIDIA GPU; the overlay acts on SM120 and SM121"
    return None if found.is_sm12x else f"{found.name} is {found.arch}; the overlay acts on SM120 and SM121"


def _apply(chosen: settings.Settings) -> None:
    if chosen.accept_drift:
        logger.warning(f"sglang-sm120: {settings.ACCEPT_DRIFT.name}=1, patch targets are not checked")
    try:
        records.apply_all(PATCHES, chosen)
    except replace.PatchError as error:
        raise stop(error) from error
    except Exception as error:  # SGLang would swallow it and run stock kernels on a GPU that lacks them
        raise stop(f"{type(error).__name__}: {error}; run stock SGLang with {settings.OFF.name}=0") from error


def stop(problem: object) -> SystemExit:
    """The exception that ends a launch with one line, and so does every further launch in this process.

    SGLang takes its plugins for loaded from now on, and would run the next launch stock without a word.
    """
    global _stopped
    if _stopped is None:
        _stopped = str(problem)
    loader = sys.modules.get(_LOADER)
    if getattr(loader, "_plugins_loaded", False):
        vars(loader)["_plugins_loaded"] = False
    return SystemExit(f"sglang-sm120: {problem}")
