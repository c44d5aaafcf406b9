"""The one way in which upstream code is replaced, and what was replaced in this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

MARK = "__sglang_sm120_patch__"


class PatchError(RuntimeError):
    """A patch cannot be applied; the message says what to do."""


@dataclass(frozen=True)
class Replacement:
    """What a patch put in the place of upstream's code.

    Attributes:
        patch: its name.
        module, qualname: the place, as SGLang looks it up.
        function: what was put there.
    """

    patch: str
    module: str
    qualname: str
    function: object

    def __str__(self) -> str:
        return f"{self.module}.{self.qualname}"


REPLACED: list[Replacement] = []


def replace(owner: type | ModuleType, name: str, patch: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace `owner.name` by `make(original)` and keep a record of it; nothing where the patch has done so already.

    A class: instances and subclasses that call super() are reached, because Python looks methods up on the class. A
    module: callers that look the name up when they call it are; a copy made by `from module import name` earlier keeps
    the original.

    Raises:
        PatchError: the function is not the one of its source file, so somebody else has replaced it.
    """
    present = owner.__dict__.get(name)
    if getattr(present, MARK, None) == patch:
        return
    where = f"{_module(owner)}.{_place(owner, name)}"
    if not isinstance(present, FunctionType) or not _is_original(owner, present):
        raise PatchError(
            f"patch {patch}: {where} has already been replaced by {_owner(present)}. Two overlays cannot both own it; "
            f"remove one, or leave ours out with SGLANG_SM120_DISABLE={patch}"
        )
    record(owner, name, patch, put(owner, name, patch, make(present)))


def put(owner: type | ModuleType, name: str, patch: str, replacement: Any) -> Any:
    """Set `owner.name`, marked as the patch's and named like what was there, whoever had put that there.

    Raises:
        PatchError: the owner keeps another value.
    """
    present: Any = owner.__dict__[name]
    replacement.__name__, replacement.__qualname__ = present.__name__, present.__qualname__
    setattr(replacement, MARK, patch)
    replacement.__wrapped__ = present
    setattr(owner, name, replacement)
    if owner.__dict__.get(name) is not replacement:
        raise PatchError(f"patch {patch}: {_module(owner)}.{_place(owner, name)} did not take the replacement")
    return replacement


def record(owner: type | ModuleType, name: str, patch: str, function: object) -> None:
    """Have `still_reached` ask whether SGLang gets to it."""
    REPLACED.append(Replacement(patch, _module(owner), _place(owner, name), function))


def _module(owner: type | ModuleType) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else owner.__module__


def _place(owner: type | ModuleType, name: str) -> str:
    return name if isinstance(owner, ModuleType) else f"{owner.__qualname__}.{name}"


def _owner(replacement: object) -> str:
    """The module whose code runs now; functools.wraps copies the names of what it wraps, but not its globals."""
    if isinstance(replacement, FunctionType):
        return str(replacement.__globals__.get("__name__"))
    return type(replacement).__module__


def _is_original(owner: type | ModuleType, function: FunctionType) -> bool:
    """Defined in the owner's module and file, and wrapping nothing."""
    return (
        function.__module__ == _module(owner)
        and not hasattr(function, "__wrapped__")
        and function.__code__.co_filename == inspect.getsourcefile(owner)
    )
