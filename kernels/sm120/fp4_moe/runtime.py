"""One kernel source, two ways to run it: compiled for the GPU, or in Triton's interpreter for tensors on a CPU.

Triton chooses between the two when a function is decorated, from TRITON_INTERPRET, and its own library (`tl.sum`, ...)
is decorated when Triton is imported. A process that imports Triton for other reasons, as SGLang does, would have to set
the variable before that and would then interpret every kernel it has. `Kernel` keeps a compiled and an interpreted form
of its own functions instead, and swaps the library's functions for interpreted ones only while an interpreted call
runs.

Triton's own launch types every argument anew, some 40 µs a kernel. Here a kernel is compiled from descriptions of its
arguments (`Pointer`, numbers), found again by them, and launched by addresses alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from triton.compiler import CompiledKernel
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

logger = logging.getLogger(__name__)
# A count of routes would be compiled anew for 1 and for multiples of 16, that is, while serving.
COUNTS = ("num_routes", "num_experts")
# Read by single elements, so that alignment would change no instruction.
NARROW = ("weights_ptr", "g_ptr")
# Triton's runner: grid, stream, function, metadata, launch metadata, two hooks, arguments (3.6 to 3.9).
DIRECT = all(hasattr(CompiledKernel, name) for name in ("run", "launch_metadata", "_init_handles"))
_interpreter_lock = threading.RLock()
_warm: set[int] = set()  # devices on which a compilation is late
Launcher = Callable[[int, Any, Any, Sequence[int]], None]


@dataclasses.dataclass(frozen=True)
class Pointer:
    """A tensor argument before there is a tensor: its name, its type, and whether its address is a multiple of 16."""

    name: str
    dtype: torch.dtype
    aligned: bool = True

    def data_ptr(self) -> int:
        """What Triton looks at to learn the alignment."""
        return 0 if self.aligned else 1


class Kernel:
    """A kernel: `run_compiled` on a GPU, `interpret` on a CPU.

    Arguments are positional, pointers first; constants (and Triton's options) are keywords, always the same ones in the
    same order for a kernel.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        names = list(inspect.signature(fn).parameters)
        self.compiled = triton.jit(
            fn,
            do_not_specialize=[n for n in names if n in COUNTS],
            do_not_specialize_on_alignment=[n for n in names if n in NARROW],
        )
        self.__doc__ = fn.__doc__
        self.__name__ = fn.__name__
        self._ready: dict[tuple[Any, ...], CompiledKernel] = {}

    @functools.cached_property
    def interpreted(self) -> InterpretedFunction:
        return InterpretedFunction(_with_interpreted_helpers(self.fn))

    def interpret(self, grid: tuple[int, ...], args: Sequence[Any], options: dict[str, Any]) -> None:
        """Run on CPU tensors, now."""
        constants = {k: v for k, v in options.items() if k not in ("num_warps", "num_stages", "launch_pdl")}
        with _interpreted_library():
            self.interpreted[grid](*args, **constants)

    def key(self, index: int, args: Sequence[Any], options: dict[str, Any]) -> tuple[Any, ...]:
        """All that the compiled form depends on."""
        kinds = (_specialization(p, a) for p, a in zip(self.compiled.params, args, strict=False))
        return (index, *options.values(), *kinds)

    def ready(self, index: int, args: Sequence[Any], options: dict[str, Any], early: bool = False) -> CompiledKernel:
        """The compiled form for the device of this index, the current one, compiled and loaded if it is not yet there.

        early: before the first forward; otherwise a compilation after `warm_up` is reported.
        """
        key = self.key(index, args, options)
        found = self._ready.get(key)
        if found is None:
            if not early and index in _warm:
                logger.warning(
                    "Compiling %s after the warm-up, which did not foresee %s %s", self.__name__, args, options
                )
            found = self.compiled.warmup(*args, grid=(1,), **options)
            found._init_handles()
            self._ready[key] = found
        return found

    def launcher(self, index: int, grid: tuple[int, ...], args: Sequence[Any], options: dict[str, Any]) -> Launcher:
        """A function of the stream, the two launch hooks and the pointers' values that launches on the current device.

        Only a pointer's type and alignment are fixed, every number is.
        """
        compiled = self.ready(index, args, options)
        x, y, z = (*grid, 1, 1)[:3]
        pointers = sum(isinstance(a, Pointer) for a in args)
        rest = (*args[pointers:], *(options[n] for n in self.compiled.arg_names if n in options))
        if not DIRECT:
            public = compiled[x, y, z]
            return lambda stream, enter, leave, addresses: public(*addresses, *rest, stream=stream)
        run, function, packed = compiled.run, compiled.function, compiled.packed_metadata

        def launch(stream: int, enter: Any, leave: Any, addresses: Sequence[int]) -> None:
            data = None if enter is None else compiled.launch_metadata((x, y, z), stream, *addresses, *rest)
            run(x, y, z, stream, function, packed, data, enter, leave, *addresses, *rest)

        return launch


def is_compiled(device: torch.device) -> bool:
    """Whether kernels are compiled for tensors on this device, and not interpreted."""
    return device.type == "cuda"


def current_stream(index: int) -> int:
    """The handle of the current stream of a device."""
    return triton.runtime.driver.active.get_current_stream(index)


def hooks() -> tuple[Any, Any]:
    """Triton's launch hooks, None where nobody (no profiler) listens."""
    knobs = triton.knobs.runtime
    enter, leave = knobs.launch_enter_hook, knobs.launch_exit_hook
    # A chain without members would be called, with metadata made for it, at each launch.
    return enter if getattr(enter, "calls", True) else None, leave if getattr(leave, "calls", True) else None


def warmed(index: int) -> None:
    """From now on report what is compiled for this device."""
    _warm.add(index)


def _specialization(parameter: Any, arg: Any) -> Any:
    """What Triton compiles differently for: a tensor's type and 16-byte alignment; a number being 1 or 16 n."""
    if isinstance(arg, Pointer):
        return arg.dtype, arg.aligned or parameter.do_not_specialize_on_alignment
    if isinstance(arg, int):
        fits = -(2**31) <= arg < 2**31
        return fits if parameter.do_not_specialize else (arg == 1, arg % 16 == 0, fits)
    return None


def kernel(fn: Callable[..., Any]) -> Kernel:
    return Kernel(fn)


def _with_interpreted_helpers(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of `fn` whose helpers (module globals that are jit functions) are plain Python, to be called directly."""
    namespace = dict(fn.__globals__)
    # The interpreter patches the language modules that it finds among a function's globals, and restores them.
    namespace["tl_core_module"] = tl.core
    for name, value in fn.__globals__.items():
        if isinstance(value, JITFunction) and name in fn.__code__.co_names:
            namespace[name] = _interpreted_helper(value)
    copy = types.FunctionType(fn.__code__, namespace, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__annotations__ = inspect.get_annotations(fn, eval_str=True)
    return copy


@functools.cache
def _interpreted_helper(helper: JITFunction) -> Callable[..., Any]:
    return InterpretedFunction(_with_interpreted_helpers(helper.fn)).rewrite()


@contextlib.contextmanager
def _interpreted_library() -> Iterator[None]:
    """Triton's own jit-decorated library functions, interpreted for the time of the call. One call at a time."""
    standard = tl.standard
    with _interpreter_lock:
        swapped: list[tuple[Any, str, Any]] = []
        wrapped = _library_functions()
        for owner in (standard, tl, tl.tensor):
            for name, value in list(vars(owner).items()):
                if isinstance(value, JITFunction) and value in wrapped:
                    swapped.append((owner, name, value))
                    setattr(owner, name, wrapped[value])
        try:
            yield
        finally:
            for owner, name, value in swapped:
                setattr(owner, name, value)


@functools.cache
def _library_functions() -> dict[JITFunction, InterpretedFunction]:
    # The first argument that the interpreter types imports further Triton modules, which want the compiled library.
    triton.runtime.jit.mangle_type(0)
    found = [value for value in vars(tl.standard).values() if isinstance(value, JITFunction)]
    return {value: InterpretedFunction(value.fn) for value in found}
