"""What `doctor` reads of the machine: GPUs, their links, the driver, and caches that a killed compile left locked."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from sglang_sm120 import gpu

GIB = 2**30
LOCK_AGE_S = 3600  # the longest single compile seen (SGLang's Marlin MoE module on one core) takes 400 s
# Directories in which SGLang's stack compiles at first use, and the variable that moves each.
CACHES = {
    "TRITON_CACHE_DIR": "~/.triton/cache",
    "FLASHINFER_WORKSPACE_BASE": "~/.cache/flashinfer",
    "TVM_FFI_CACHE_DIR": "~/.cache/tvm-ffi",
    "TORCH_EXTENSIONS_DIR": "~/.cache/torch_extensions",
}


def cards() -> dict[str, Any] | None:
    """Driver and visible GPUs with memory, PCIe link and NVLinks; None without NVML."""
    with gpu.nvml() as pynvml:
        if pynvml is None:
            return None
        found = []
        for handle in gpu.visible_handles(pynvml):
            with contextlib.suppress(pynvml.NVMLError):  # a lost GPU
                found.append(_card(pynvml, handle))
        return {"driver": gpu.text(pynvml.nvmlSystemGetDriverVersion()), "cards": found}


def _card(pynvml: Any, handle: Any) -> dict[str, Any]:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    questions = {
        "memory_gib": lambda: round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / GIB, 1),
        "pcie_generation": lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        "pcie_width": lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        "power_limit_w": lambda: pynvml.nvmlDeviceGetPowerManagementLimit(handle) // 1000,
    }
    card: dict[str, Any] = {"name": gpu.text(pynvml.nvmlDeviceGetName(handle)), "arch": f"sm{major}{minor}"}
    for name, ask in questions.items():
        try:
            card[name] = ask()
        except pynvml.NVMLError:  # GB10 answers neither memory nor PCIe: it has one memory with its CPU
            card[name] = None
    card["nvlinks"] = _nvlinks(pynvml, handle)
    return card


def _nvlinks(pynvml: Any, handle: Any) -> int:
    active = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED
        except pynvml.NVMLError:
            break
    return active


def stale_locks() -> list[str]:
    """Lock files in the JIT caches that no compile can still hold; a waiting process would wait for ever."""
    found = []
    for variable, default in CACHES.items():
        root = Path(os.environ.get(variable) or default).expanduser()
        if not root.is_dir():
            continue
        for path in (p for pattern in ("**/lock", "**/*.lock") for p in root.glob(pattern)):
            # An flock leaves its (empty) file behind by design; only torch's `lock` means "held" by existing.
            held = path.name == "lock" and variable == "TORCH_EXTENSIONS_DIR"
            if held and time.time() - path.stat().st_mtime > LOCK_AGE_S:
                found.append(str(path))
    return sorted(set(found))


def hints(machine: dict[str, Any] | None) -> list[str]:
    """What to expect and to try with these GPUs, each with its source."""
    found = machine["cards"] if machine else []
    told = []
    if len(found) > 1 and all(card["nvlinks"] == 0 for card in found):
        told.append(
            f"{len(found)} GPUs without NVLink: tensor parallelism sums over PCIe after each layer. Others report 41 "
            "to 50 % of decode time there at TP4 (the sm120-moe-bench project). Prefer the smallest --tp whose weights "
            "fit (`sglang-sm120 plan` shows them); SGLang fuses no all-reduce on SM120 by itself: nothing to turn off"
        )
    narrow = [card["name"] for card in found if card["pcie_width"] not in (None, 16)]
    if narrow and len(found) > 1:
        told.append(
            f"{narrow[0]} has a PCIe link of less than 16 lanes; move it, or keep --tp to the GPUs that have 16"
        )
    if any(card["arch"] == "sm121" for card in found):
        told.append(
            "GB10 on SGLang 0.5.20 and older: set SGLANG_ENABLE_JIT_DEEPGEMM=0; they switch it off for sm_120 only"
        )
    return told
