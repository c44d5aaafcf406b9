"""Let SGLang resolve a launch as if on another GPU, in a process that does nothing else.

What is faked, and why this and no more:

* the device queries of `torch.cuda` and of NVML, before SGLang is imported, so that its own rules see the architecture.
  Both, because SGLang asks NVML while CUDA is not initialised and torch afterwards;
* `nvidia-smi`, by an empty search path: SGLang then asks torch for the memory;
* compiled packages that cannot be imported where the driver library `libcuda.so.1` is missing. A stub library built
  with a compiler would do too, but a slim image has no compiler. Where the driver is there, the real ones are used.

Nothing of SGLang is replaced. Layers are built on the meta device, so no kernel runs and no memory is needed.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from sglang_sm120.checkpoint.memory import GIB
from sglang_sm120.gpu import capability_of
from sglang_sm120.settings import AUTO

# name, multiprocessors: NVIDIA's product pages; only messages and scheduling defaults look at them
PRODUCTS = {
    "sm120": ("NVIDIA RTX PRO 6000 Blackwell", 188),
    "sm121": ("NVIDIA GB10", 48),
    "sm100": ("NVIDIA B200", 148),
    "sm90": ("NVIDIA H200", 132),
}
SIMULATED = tuple(PRODUCTS)
DEVICES = 16  # enough for the largest single host
_NEED_DRIVER = ("sgl_kernel", "flash_mla", "deep_gemm")


def install(arch: str, memory_gib: int, name: str | None = None) -> None:
    """Fake the GPUs of this process. Call once, before SGLang is imported.

    Args:
        name: of this machine's GPU where that is the one; a product of the architecture otherwise, which no runner
            was measured on.
    """
    if name is None:
        os.environ.setdefault(AUTO.name, "fixed")
    assert "sglang" not in sys.modules, "SGLang has already read the real devices"
    product = name or PRODUCTS[arch][0]
    _fake_torch(arch, memory_gib, product)
    _fake_nvml(arch, product)
    os.environ["PATH"] = os.path.dirname(sys.executable)
    if not _has_driver():
        sys.meta_path.insert(0, _StandIns())


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _fake_torch(arch: str, memory_gib: int, name: str) -> None:
    import torch

    (major, minor), multiprocessors, total = capability_of(arch), PRODUCTS[arch][1], memory_gib * GIB
    properties = SimpleNamespace(
        major=major,
        minor=minor,
        name=name,
        total_memory=total,
        multi_processor_count=multiprocessors,
        warp_size=32,
        max_threads_per_multi_processor=1536 if major == 12 else 2048,
        shared_memory_per_block_optin=101376 if major == 12 else 232448,
        regs_per_multiprocessor=65536,
        L2_cache_size=128 * 2**20,
    )
    answers = {
        "is_available": True,
        "device_count": DEVICES,
        "current_device": 0,
        "get_device_capability": (major, minor),
        "get_device_name": name,
        "get_device_properties": properties,
        "mem_get_info": (total - GIB, total),
        "_get_nvml_device_index": 0,
        "set_device": None,
    }
    for function, answer in answers.items():
        setattr(torch.cuda, function, _constant(answer))
    torch.version.cuda = torch.version.cuda or "13.0"
    # Below SGLang 0.5.20 the NVFP4 method asks for `.cuda()` while it makes its parameters.
    torch.Tensor.cuda = lambda tensor, *_args, **_kwargs: tensor  # type: ignore[method-assign]


def _fake_nvml(arch: str, name: str) -> None:
    try:
        import pynvml
    except ImportError:
        return
    answers = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": DEVICES,
        "nvmlDeviceGetHandleByIndex": "simulated",
        "nvmlDeviceGetCudaComputeCapability": capability_of(arch),
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetUUID": "GPU-simulated",
    }
    for function, answer in answers.items():
        setattr(pynvml, function, _constant(answer))


def _constant(answer: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: answer


class _NoneOfIt(type):
    """Class whose every attribute is another such class: enough for import statements and annotations."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NoneOfIt(name, (_Absent,), {})

    def __or__(cls, other: Any) -> Any:
        return object

    __ror__ = __or__


class _Absent(metaclass=_NoneOfIt):
    """Stands where a compiled function or class would be; calling it says what is missing."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError(f"{type(self).__name__} belongs to a compiled package, which a simulated launch cannot run")


class _StandInModule(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NoneOfIt(name, (_Absent,), {})


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] in _NEED_DRIVER:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute, but SGLang 0.5.14 registers a shape function for this operator without asking for it."""
        if module.__name__ == "sgl_kernel":
            import torch

            torch.library.define("sgl_kernel::moe_fused_gate", "(Tensor input) -> Tensor")
