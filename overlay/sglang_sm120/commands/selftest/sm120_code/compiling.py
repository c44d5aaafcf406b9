"""The kernel package in this process as on an SM120 of some size, its machine code that of SM120 as far as SM90 has it.

Only the kernel package's own kernels are compiled for SM120; other Triton kernels of the process stay SM90's. While
`Sm120Code` is in place, Triton's cache of compiled kernels is a directory of its own: what is compiled here must never
be found by a process on a real SM120.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import known_forms, mutations, ptx, substitute

ARCHITECTURES = {"sm_120a": (12, 0), "sm_121a": (12, 1)}
SMS = {188: "RTX PRO 6000", 170: "RTX 5090", 84: "a smaller card", 48: "GB10"}
NEEDED = (9, 0)
KERNELS = "sglang_sm120.kernels.sm120.fp4_moe"


class WrongGpu(RuntimeError):
    """This is no SM90; the message names what is there."""


@dataclass(frozen=True)
class Made:
    """How one kernel was compiled: what was replaced in it, how often; `broken`: places with a fault put in."""

    replaced: dict[str, int]
    broken: int = 0


def require_sm90() -> None:
    """Raises WrongGpu unless the current GPU is an SM90 (H100, H200, GH200)."""
    import torch

    if not torch.cuda.is_available():
        raise WrongGpu("SM120's code runs on an SM90 (H100, H200, GH200); no CUDA GPU is usable here")
    capability = torch.cuda.get_device_capability()
    if tuple(capability) != NEEDED:
        name, sm = torch.cuda.get_device_name(), f"SM{capability[0]}{capability[1]}"
        where = "; there selftest itself runs the code that SM120 has" if capability[0] == 12 else ""
        raise WrongGpu(f"SM120's code runs on an SM90 (H100, H200, GH200); this is {name}, {sm}{where}")


def sources_digest() -> str:
    """Of what decides the substitution: part of the name of a cache that outlives a process."""
    files = (Path(str(m.__file__)) for m in (substitute, known_forms, ptx, mutations))
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:12]


def kernel_digest() -> str:
    """Of what decides the kernels' code: the programs, and the host's choice among them."""
    package = Path(__file__).resolve().parents[3] / KERNELS.partition(".")[2].replace(".", "/")
    found = hashlib.sha256()
    for file in sorted(f for room in ("device", "host") for f in (package / room).glob("*.py")):
        found.update(f"{file.parent.name}/{file.name}".encode() + file.read_bytes())
    return found.hexdigest()[:12]


class Sm120Code:
    """A context in which the kernel package compiles and plans for SM120.

    Args:
        arch: `sm_120a` or `sm_121a`.
        sms: streaming multiprocessors of the GPU to plan for.
        cache: directory for compiled kernels.
        breaks: a fault of `mutations` to put in; None: none.

    `made` holds each kernel that was compiled, under `key_of` of its step.

    Raises (on entering): WrongGpu.
    """

    def __init__(self, arch: str, sms: int, cache: Path, breaks: str | None = None) -> None:
        if arch not in ARCHITECTURES:
            raise ValueError(f"arch is {arch!r}, expected one of {', '.join(ARCHITECTURES)}")
        if sms < 1:
            raise ValueError(f"sms is {sms}, expected a positive number of SMs")
        self.arch, self.sms, self.cache, self.breaks = arch, sms, cache, breaks
        self.made: dict[tuple[Any, ...], Made] = {}
        self._now = threading.local()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Sm120Code:
        require_sm90()
        with contextlib.ExitStack() as stack:
            stack.callback(forget)
            self._replace_rules(stack)
            self._replace_compilation(stack)
            forget()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def resize(self, sms: int) -> None:
        """Plan for another number of SMs; what is compiled stays."""
        from sglang_sm120.kernels.sm120.fp4_moe import layer

        self.sms = sms
        layer._call.cache_clear()

    def _replace_rules(self, stack: contextlib.ExitStack) -> None:
        """The kernel's own rules, asked once about SM120's compute capability; and no tile table of this machine."""
        import torch

        from sglang_sm120.kernels.sm120.fp4_moe.host import program, schedule, tuning

        device = torch.device("cuda")
        with contextlib.ExitStack() as asking:
            _put(asking, torch.cuda, "get_device_capability", lambda device=None: ARCHITECTURES[self.arch])
            for owner, name in ((schedule, "is_sm90"), (program, "has_pdl"), (program, "has_native_fp8")):
                answer = getattr(owner, name).__wrapped__(device)
                _put(stack, owner, name, lambda device, answer=answer: answer)
        _put(stack, schedule, "sm_count", lambda device: self.sms)
        stack.enter_context(tuning.trying(None))

    def _replace_compilation(self, stack: contextlib.ExitStack) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia.compiler import CUDABackend

        from sglang_sm120.kernels.sm120.fp4_moe import runtime

        driver, now = triton.runtime.driver.active, self._now
        target = GPUTarget("cuda", int("".join(map(str, ARCHITECTURES[self.arch]))), 32)
        own_target, own_ready, own_cubin = driver.get_current_target, runtime.Kernel.ready, CUDABackend.make_cubin

        def ready(kernel: Any, index: int, args: Any, options: Any, early: bool = False) -> Any:
            now.key = key_of(kernel, args, options)
            try:
                return own_ready(kernel, index, args, options, early)
            finally:
                now.key = None

        def make_cubin(backend: Any, src: str, metadata: Any, opt: Any, capability: int) -> Any:
            key = getattr(now, "key", None)
            if key is None:
                return bytes(own_cubin(backend, src, metadata, opt, capability))
            done = substitute.for_sm90(src)
            text, places = mutations.broken(done.text, self.breaks) if self.breaks else (done.text, 0)
            self.made[key] = Made(done.replaced, places)
            # The backend keeps its own target, and so the assembler that knows SM120's PTX; it knows SM90 too.
            return bytes(own_cubin(backend, text, metadata, opt, 10 * NEEDED[0] + NEEDED[1]))

        _put(stack, driver, "get_current_target", lambda: target if getattr(now, "key", None) else own_target())
        _put(stack, runtime.Kernel, "ready", ready)
        _put(stack, CUDABackend, "make_cubin", make_cubin)
        stack.enter_context(triton.knobs.cache.scope())  # a setting is also an environment variable
        triton.knobs.cache.dir = str(self.cache)


def key_of(kernel: Any, args: Any, options: Any) -> tuple[Any, ...]:
    """All that a kernel's compiled form depends on."""
    return (kernel.__name__, *kernel.key(0, args, options))


def forget() -> None:
    """Everything that the kernel package and Triton remember of plans and compiled kernels."""
    from sglang_sm120.kernels.sm120.fp4_moe import layer, runtime, warming
    from sglang_sm120.kernels.sm120.fp4_moe.host import tuning

    for cached in (layer._call, warming._warm_up, tuning._plan):
        cached.cache_clear()
    runtime._warm.clear()
    for kernel in kernels():
        kernel._ready.clear()
        kernel.compiled.device_caches.clear()


def kernels() -> Iterator[Any]:
    """The kernels of the package, in whatever module they are."""
    from sglang_sm120.kernels.sm120.fp4_moe import runtime

    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{KERNELS}."):
            found.update({id(v): v for v in vars(module).values() if isinstance(v, runtime.Kernel)})
    yield from found.values()


def _put(stack: contextlib.ExitStack, owner: Any, name: str, value: Callable[..., Any]) -> None:
    """Set an attribute until the stack closes; what the owner itself did not have is taken away again."""
    had = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    stack.callback(lambda: setattr(owner, name, before) if had else delattr(owner, name))
