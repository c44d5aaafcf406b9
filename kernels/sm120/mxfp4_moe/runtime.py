"""One kernel source, two ways to run it: compiled for the GPU, or in Triton's interpreter for tensors on a CPU.

Triton chooses between the two when a function is decorated, from TRITON_INTERPRET, and its own library (`tl.sum`, ...)
is decorated when Triton is imported. A process that imports Triton for other reasons, as SGLang does, would have to set
the variable before that and would then interpret every kernel it has. `Kernel` keeps a compiled and an interpreted form
of its own functions instead, and swaps the library's functions for interpreted ones only while an interpreted call
runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

COUNTS = ("num_routes", "num_experts")
_interpreter_lock = threading.RLock()


class Kernel:
    """A kernel to launch: `kernel.launch(grid, device, *args, num_warps=…, launch_pdl=…, **constants)`.

    Arguments are positional, constants (and Triton's options) are keywords, always the same ones for a kernel.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        # A count of routes would be compiled anew for 1 and for multiples of 16, that is, while serving.
        counts = [name for name in inspect.signature(fn).parameters if name in COUNTS]
        self.compiled = triton.jit(fn, do_not_specialize=counts)
        self.__doc__ = fn.__doc__
        self.__name__ = fn.__name__
        self._ready: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}

    @functools.cached_property
    def interpreted(self) -> InterpretedFunction:
        return InterpretedFunction(_with_interpreted_helpers(self.fn))

    def launch(self, grid: tuple[int, ...], device: torch.device, *args: Any, **options: Any) -> None:
        if device.type == "cuda":
            self._launch_compiled(grid, device, args, options)
            return
        for name in ("num_warps", "num_stages", "launch_pdl"):
            options.pop(name, None)
        with _interpreted_library():
            self.interpreted[grid](*args, **options)

    def _launch_compiled(
        self, grid: tuple[int, ...], device: torch.device, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """Triton's own launch binds and types every argument anew, some 40 µs a kernel; here a kernel once compiled is
        found by all that its compilation depended on, and Triton's launcher gets the arguments in its order."""
        key = (device.index, *options.values(), *map(_specialization, args))
        ready = self._ready.get(key)
        if ready is None:
            compiled = self.compiled[grid](*args, **options)
            constants = tuple(options[name] for name in self.compiled.arg_names if name in options)
            self._ready[key] = compiled, constants
        else:
            compiled, constants = ready
            compiled[(*grid, 1, 1)[:3]](*args, *constants)


def _specialization(arg: Any) -> Any:
    """What Triton compiles differently for: a tensor's type and 16-byte alignment; a number being 1 or 16 n."""
    if isinstance(arg, torch.Tensor):
        return arg.dtype, arg.data_ptr() % 16 == 0
    if isinstance(arg, int):
        return arg == 1, arg % 16 == 0, -(2**31) <= arg < 2**31
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
