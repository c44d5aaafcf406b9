"""GB10 (DGX Spark): one memory for CPU and GPU, of which 128 GB are sold and about 119 GiB are there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sglang_sm120.checkpoint.memory import GIB
from sglang_sm120.commands.findings.record import Finding

LEAST_GIB = 100  # of a GB10's memory that the system should see
FREE_PART = 0.8  # what the recipes' --mem-fraction-static asks for
SHM_PART = 0.51  # tmpfs takes half of the memory by default; more was asked for
PROC, SHM, SYS = Path("/proc"), Path("/dev/shm"), Path("/sys")


def found(proc: Path = PROC, shm: Path = SHM, sys: Path = SYS, kernel: str | None = None) -> list[Finding]:
    """What is wrong with a GB10's memory and links; call it on one alone.

    Args:
        proc, shm, sys: where the system shows itself.
        kernel: its release; this system's if None.
    """
    kernel = os.uname().release if kernel is None else kernel
    total, free = (_gib(proc / "meminfo", name) for name in ("MemTotal", "MemAvailable"))
    return [*_little(total), *_held(total, free), *_shm(shm, total), *_kernel(kernel, proc, sys)]


def _little(total: float) -> list[Finding]:
    if not 0 < total < LEAST_GIB:
        return []
    return [
        Finding(
            "unified-memory",
            f"this GB10 shows {total:.0f} GiB of about 119",
            "look for a driver option that sets memory aside (/etc/modprobe.d) and for a container's memory limit; "
            f"until then give plan --gpu-memory-gib {total:.0f}",
        )
    ]


def _held(total: float, free: float) -> list[Finding]:
    if not 0 < free < FREE_PART * total:
        return []
    return [
        Finding(
            "held-memory",
            f"{free:.0f} of {total:.0f} GiB are available, and a GB10's GPU has no others; SGLang then ends with "
            "`memory capacity is unbalanced` or leaves no KV cache",
            "end what holds the rest (a killed container may), or drop caches: sync; echo 3 > /proc/sys/vm/drop_caches",
        )
    ]


def _shm(shm: Path, total: float) -> list[Finding]:
    try:
        status = os.statvfs(shm)
    except OSError:
        return []
    size = status.f_blocks * status.f_frsize / GIB
    if not total or size <= SHM_PART * total:
        return []
    return [
        Finding(
            "shm",
            f"/dev/shm may take {size:.0f} of the {total:.0f} GiB that the GPU shares",
            "start the container with --shm-size 10g (compose: shm_size: 10gb)",
            "tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark#31",
        )
    ]


def _kernel(kernel: str, proc: Path, sys: Path) -> list[Finding]:
    version = re.match(r"(\d+)\.", kernel)
    cards = sorted(path.name for path in (sys / "class" / "infiniband").glob("*"))
    if version is None or int(version[1]) < 7 or not cards or "kho=off" in _read(proc / "cmdline").split():
        return []
    return [
        Finding(
            "rdma-kernel",
            f"kernel {kernel} with RDMA ({', '.join(cards)}): registering memory failed there (ibv_reg_mr: ENOMEM), so "
            "two hosts do not start",
            "boot with kho=off, or a 6.17 kernel; without RDMA: NCCL_IB_DISABLE=1",
            "MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks#14, MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#259",
        )
    ]


def _gib(file: Path, name: str) -> float:
    """A line of /proc/meminfo in GiB; 0 where it cannot be read."""
    line = re.search(rf"^{name}:\s+(\d+) kB", _read(file), re.M)
    return int(line[1]) * 1024 / GIB if line else 0


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
