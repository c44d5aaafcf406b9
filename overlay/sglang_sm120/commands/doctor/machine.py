"""What `doctor` reads of the machine: GPUs, their links, and the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sglang_sm120 import gpu
from sglang_sm120.checkpoint.memory import GIB
from sglang_sm120.commands.findings import links
from sglang_sm120.kernels.sm120.tile_tables import Machine

CORES_AN_SM = 128  # of compute capability 8.6 and later


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
    questions: dict[str, Callable[[], Any]] = {
        "memory_gib": lambda: round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / GIB, 1),
        "pcie_generation": lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        "pcie_width": lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        "sms": lambda: pynvml.nvmlDeviceGetNumGpuCores(handle) // CORES_AN_SM,
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


def identity(machine: dict[str, Any] | None) -> Machine | None:
    """What a tile table of the first card is keyed by; None without a card, or without Triton."""
    first = machine["cards"][0] if machine and machine["cards"] else None
    if first is None or first["sms"] is None:
        return None
    try:
        return Machine(first["name"], first["sms"], version("triton"))
    except PackageNotFoundError:
        return None


def hints(machine: dict[str, Any] | None) -> list[str]:
    """What to expect and to try with these GPUs, each with its source."""
    found = machine["cards"] if machine else []
    told = []
    if len(found) > 1 and all(card["nvlinks"] == 0 for card in found):
        told.append(
            f"{len(found)} GPUs without NVLink: tensor parallelism sums over PCIe after each layer. Others report 41 "
            "to 50 % of decode time there at TP4 (the sm120-moe-bench project). Prefer the smallest --tp whose weights "
            "fit (`sglang-sm120 plan` shows them); SGLang fuses no all-reduce on SM120 by itself: nothing to turn off"
            + (f". If the first all-reduce hangs: {links.NO_PEERS}" if len(found) == 2 else "")
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
