"""The entry point: SGLang calls `register()` early in each process that it starts.

SGLang's loader logs and swallows every `Exception` of a plugin and goes on with stock kernels. On SM120 that would end
in a crash after minutes of loading, or in wrong numbers; so whatever goes wrong here leaves as `SystemExit`.
"""

from __future__ import annotations

import logging

from sglang_sm120 import gpu, patching, settings
from sglang_sm120.patches import PATCHES
from sglang_sm120.patching import Status

logger = logging.getLogger("sglang_sm120")
_registered = False


def register() -> None:
    """Read the settings, look at the GPU, and apply the patches if it is an SM120 or SM121.

    Does nothing on other GPUs, and nothing the second time.

    Raises:
        SystemExit: a setting is bad, or a patch does not fit the installed SGLang. The message says what to do.
    """
    global _registered
    if _registered:
        return
    try:
        chosen = settings.read([p.name for p in PATCHES])
    except settings.SettingError as error:
        raise stop(error) from error
    for warning in chosen.warnings:
        logger.warning(warning)
    if not chosen.enabled:
        logger.warning(f"sglang-sm120 is off ({settings.OFF.name}=0): stock SGLang")
    found = gpu.detect(chosen.assume) if chosen.enabled else None
    reason = why_inactive(chosen, found)
    if reason is not None:
        patching.set_all(PATCHES, Status.NOT_APPLICABLE, reason)
    else:
        _apply(chosen, found)
    _registered = True


def why_inactive(chosen: settings.Settings, found: gpu.Gpu | None) -> str | None:
    """Why no patch applies with these settings on this GPU; None where they do."""
    if not chosen.enabled:
        return f"{settings.OFF.name}=0"
    if found is None:
        return "no NVIDIA GPU; the overlay acts on SM120 and SM121"
    return None if found.is_sm12x else f"{found.name} is {found.arch}; the overlay acts on SM120 and SM121"


def _apply(chosen: settings.Settings, found: gpu.Gpu | None) -> None:
    if found is not None and found.mixed:
        logger.warning(f"sglang-sm120: the visible GPUs differ; routing for the first, {found.name} ({found.arch})")
    if chosen.accept_drift:
        logger.warning(f"sglang-sm120: {settings.ACCEPT_DRIFT.name}=1, patch targets are not checked")
    try:
        patching.apply_all(PATCHES, chosen)
    except patching.PatchError as error:
        raise stop(error) from error


def stop(problem: object) -> SystemExit:
    """The exception that ends a launch with one line."""
    return SystemExit(f"sglang-sm120: {problem}")
