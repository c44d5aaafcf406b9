"""Which GPU architecture this process will use, without creating a CUDA context.

NVML answers first. torch.cuda is asked only where it is initialised already, or where there is no NVML and torch has
been imported anyway: creating a context in a launcher that later forks would break its children.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One visible GPU, or the assumption that replaces it.

    Attributes:
        capability: compute capability (major, minor).
        name: product name.
        source: "nvml", "torch" or "SGLANG_SM120_ASSUME".
        mixed: the visible GPUs are of several capabilities; this one is the first in PCI order.
        mixed_with_sm12x: and one of them is an SM120 or SM121.
    """

    capability: tuple[int, int]
    name: str
    source: str
    mixed: bool = False
    mixed_with_sm12x: bool = False

    @property
    def arch(self) -> str:
        """`sm120` for (12, 0), as NVIDIA and Triton write it."""
        return f"sm{self.capability[0]}{self.capability[1]}"

    @property
    def is_sm12x(self) -> bool:
        """SM120 (RTX PRO 6000, RTX 5090) or SM121 (GB10): the same instruction set, and the overlay's whole scope."""
        return self.capability[0] == 12


def capability_of(arch: str) -> tuple[int, int]:
    """(12, 1) for `sm121`."""
    digits = arch.removeprefix("sm")
    return int(digits[:-1]), int(digits[-1])


def detect(assume: str | None = None) -> Gpu | None:
    """The GPU that decides the routing; None without a usable NVIDIA GPU.

    Args:
        assume: architecture named by SGLANG_SM120_ASSUME; nothing is asked then.
    """
    if assume is not None:
        return Gpu(capability_of(assume), f"assumed {assume}", "SGLANG_SM120_ASSUME")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return _from_torch(torch)
    found = _from_nvml()
    if found is None and torch is not None:
        found = _from_torch(torch)
    return found


def visible(count: int, uuids: list[str], setting: str | None) -> list[int]:
    """NVML indices that CUDA_VISIBLE_DEVICES leaves, in its order.

    CUDA stops reading the list at the first entry that it cannot use; so does this. Numbers are taken in PCI order,
    which is CUDA's order when all GPUs are equal or CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    if setting is None:
        return list(range(count))
    found: list[int] = []
    for entry in (e.strip() for e in setting.split(",")):
        if entry.isdigit() and int(entry) < count:
            found.append(int(entry))
            continue
        gpu = entry.removeprefix("MIG-").split("/")[0] if entry.startswith("MIG-GPU-") else entry
        match = [i for i, uuid in enumerate(uuids) if gpu.startswith("GPU-") and uuid.startswith(gpu)]
        if len(match) != 1:
            break
        found += match
    return found


@contextmanager
def nvml() -> Iterator[Any]:
    """The `pynvml` module with NVML open; None where the binding or the driver is missing."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def visible_handles(pynvml: Any) -> list[Any]:
    """NVML handles of the GPUs that CUDA_VISIBLE_DEVICES leaves; a GPU that does not answer is left out."""
    handles, uuids = [], []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuids.append(text(pynvml.nvmlDeviceGetUUID(handle)))
        except pynvml.NVMLError:  # lost, or not ours to ask
            continue
        handles.append(handle)
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is not None:
        setting = ",".join(_parent_of_slice(pynvml, entry.strip()) for entry in setting.split(","))
    return [handles[i] for i in visible(len(handles), uuids, setting)]


def _parent_of_slice(pynvml: Any, entry: str) -> str:
    """`MIG-<uuid>` names a slice of a GPU; the GPU's own UUID decides the architecture."""
    if not entry.startswith("MIG-") or entry.startswith("MIG-GPU-"):
        return entry
    try:
        piece = pynvml.nvmlDeviceGetHandleByUUID(entry)
        return text(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(piece)))
    except pynvml.NVMLError:
        return entry


def _from_nvml() -> Gpu | None:
    with nvml() as pynvml:
        found = []
        for handle in visible_handles(pynvml) if pynvml else []:
            try:
                capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
                found.append((capability, text(pynvml.nvmlDeviceGetName(handle))))
            except pynvml.NVMLError:
                continue
    if not found:
        return None
    capability, name = found[0]
    mixed = len({c for c, _ in found}) > 1
    return Gpu(capability, name, "nvml", mixed, mixed and any(c[0] == 12 for c, _ in found))


def _from_torch(torch: Any) -> Gpu | None:
    if torch.version.cuda is None or not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return Gpu((major, minor), torch.cuda.get_device_name(), "torch")


def text(value: str | bytes) -> str:
    """NVML's strings, which older bindings return as bytes."""
    return value.decode() if isinstance(value, bytes) else value
