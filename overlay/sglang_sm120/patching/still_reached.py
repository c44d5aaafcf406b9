"""Whether SGLang still gets to what the patches put in place, asked after all plugins have been loaded.

A plugin that loads later can replace the same function. If it calls what it found, both work; if not, ours is out of
reach, and the layer would get stock kernels that SM120 does not have. Asked when DeepSeek-V4's flags are resolved and,
in each scheduler, when SGLang's loader has made the quantization configuration: weights have not been read by then.
The configuration itself is asked too, because a class of another plugin in SGLang's table of quantization methods
leaves the patched one where it is and is used in its stead.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from itertools import islice
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from sglang_sm120.patching import built_methods, on_import, ranks_agree, replace
from sglang_sm120.patching.replace import Replacement
from sglang_sm120.settings import OFF
from sglang_sm120.upstream import server_flags

LOADER = "sglang.srt.model_loader.loader"
CONFIGURES = "_get_quantization_config"
_METHOD = "get_quant_method"
_WATCH = "still_reached"
# The class that SGLang makes the configuration from, for each format of experts that a patch is about.
_CONFIGURATIONS = {"hybrid-nvfp4": f"HybridFp8NvFp4Config.{_METHOD}", "mxfp4": f"Fp8Config.{_METHOD}"}
_TABLE_NAME = "fp8"  # of these checkpoints in SGLang's table of quantization methods
_ARCHITECTURES = "DeepseekV4"  # how the names of its target's and drafts' architectures begin
_GROUP = "sglang.srt.plugins"
_LIMIT = 10_000  # things that are looked at; a wrapper is found within the first few
_LARGE = 1_000  # containers beyond this are data
_NOT_FOREIGN = ("sglang", "sglang_sm120")


def watch() -> None:
    """Look at every model of DeepSeek-V4 that SGLang's loader is about to build, here and on the other ranks."""
    on_import.when_imported(LOADER, _watch)


def _watch(module: ModuleType) -> None:
    original: Callable[..., Any] = getattr(module, CONFIGURES)
    if getattr(original, replace.MARK, None) == _WATCH:
        return

    @functools.wraps(original)
    def configures(model_config: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(model_config, *args, **kwargs)  # imports what it makes, so patches that waited are in now
        if any(a.startswith(_ARCHITECTURES) for a in model_config.hf_config.architectures or ()):
            ranks_agree.require()
            require()
            _require_in(made, model_config)
        return made

    replace.put(module, CONFIGURES, _WATCH, configures)


def require() -> None:
    """End the launch if a patch has been replaced.

    Raises:
        SystemExit: the message names what was replaced, the code that is there now, and what to do.
    """
    for replacement in replace.REPLACED:
        present = _present(replacement)
        if not _reaches(present, replacement.function):
            code = _foreign(present)
            fault = f"{replacement} is now {code}{_plugins(code)}, which does not call what was there before"
            raise SystemExit(_refusal(replacement.patch, fault))


def _require_in(made: object, model_config: Any) -> None:
    """End the launch if the configuration that layers will be asked of does not get to its patch; else look after it.

    Another name in SGLang's table than these checkpoints have was asked for with `--quantization`, and stays.

    Args:
        made: SGLang's configuration of the model's quantization; None without one.
        model_config: SGLang's ModelConfig.
    """
    if made is None or model_config.quantization != _TABLE_NAME:
        return
    concerned = _CONFIGURATIONS.get(server_flags.expert_kind(model_config))
    for replacement in replace.REPLACED:
        if replacement.qualname == concerned and not _calls(made, replacement.function):
            cls = f"{type(made).__module__}.{type(made).__qualname__}"
            fault = f"the model's quantization is configured by {cls}{_plugins(cls)}, whose {_METHOD} does not call "
            raise SystemExit(_refusal(replacement.patch, f"{fault}{replacement}"))
    if concerned is not None:
        built_methods.watch(made)


def _calls(made: object, function: object) -> bool:
    """Whether the configuration's method gets to a function, through another configuration that it hands on to too."""
    method = inspect.getattr_static(made, _METHOD, None)
    handed_to = _handed_to(made, method or inspect.getattr_static(type(made), "__getattr__", None))
    return _reaches(method, function) or any(
        _reaches(inspect.getattr_static(held, _METHOD, None), function) for held in handed_to
    )


def _handed_to(made: object, method: object) -> Iterator[object]:
    """What the object holds under a name that the method's code has."""
    code = [thing.__code__ for thing in islice(_behind(method), _LIMIT) if isinstance(thing, FunctionType)]
    names = set[str]().union(*map(_names, code))
    yield from (held for name, held in getattr(made, "__dict__", {}).items() if name in names)


def _refusal(patch: str, fault: str) -> str:
    return (
        f"sglang-sm120: patch {patch}: {fault}. Uninstall that plugin, or leave it out of SGLANG_PLUGINS; or leave "
        f"ours out with SGLANG_SM120_DISABLE={patch}, or run stock SGLang with {OFF.name}=0"
    )


def _plugins(code: str) -> str:
    """The plugins of SGLang that the code may belong to, by the package that it is in."""
    found = [e for e in entry_points(group=_GROUP) if e.module.partition(".")[0] == code.partition(".")[0]]
    names = [f"{e.name} of {e.dist.name}" if e.dist else e.name for e in found]
    return f" (plugin {', '.join(sorted(names))})" if names else ""


def _present(replacement: Replacement) -> object:
    """What SGLang finds at the place now, looked up as it would; None if there is nothing."""
    found: object = sys.modules.get(replacement.module)
    for part in replacement.qualname.split("."):
        found = inspect.getattr_static(found, part, None)
    return found


def _reaches(start: object, function: object) -> bool:
    return any(thing is function for thing in islice(_behind(start), _LIMIT))


def _foreign(present: object) -> str:
    """The code that runs now: the first function that is neither SGLang's nor ours, so a hook and not its wrapper."""
    for thing in islice(_behind(present), _LIMIT):
        if isinstance(thing, FunctionType) and _package(thing) not in _NOT_FOREIGN:
            return f"{thing.__globals__.get('__name__')}.{thing.__code__.co_qualname}"
    return repr(present) if present is not None else "gone"


def _behind(start: object) -> Iterator[object]:
    """What a callable can get to, nearest first."""
    seen: dict[int, object] = {}
    queue = deque([start])
    while queue:
        thing = queue.popleft()
        if id(thing) not in seen:
            seen[id(thing)] = thing
            yield thing
            queue.extend(_one_step(thing))


def _one_step(thing: object) -> Iterator[object]:
    if isinstance(thing, FunctionType):
        yield from _of_function(thing)
    elif isinstance(thing, MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, (functools.partial, functools.partialmethod)):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, (classmethod, staticmethod)):
        yield thing.__func__
    elif isinstance(thing, (dict, list, tuple, set, frozenset)):
        if len(thing) <= _LARGE:
            yield from thing.values() if isinstance(thing, dict) else thing
    elif not isinstance(thing, (type, ModuleType)):
        yield inspect.getattr_static(type(thing), "__call__", None)
        yield inspect.getattr_static(type(thing), "__get__", None)
        yield getattr(thing, "__dict__", None)
        yield from _slots(thing)


def _slots(thing: object) -> Iterator[object]:
    """What an object holds beside a dictionary; a wrapper in C computes its `__wrapped__`."""
    for cls in type(thing).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, MemberDescriptorType) or (
                isinstance(member, GetSetDescriptorType) and name == "__wrapped__"
            ):
                with contextlib.suppress(AttributeError):  # not yet set
                    yield member.__get__(thing)


def _of_function(function: FunctionType) -> Iterator[object]:
    """Its cells, defaults and the globals that its code names, with what it names of modules and classes among them.

    `__wrapped__` counts only if the code names it: SGLang's hook registry sets it on a hook that replaces a function
    and never calls it.
    """
    names = _names(function.__code__)
    if "__wrapped__" in names:
        yield getattr(function, "__wrapped__", None)
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not yet filled
            yield from _named(cell.cell_contents, names)
    if _package(function) not in _NOT_FOREIGN:
        for name in names & function.__globals__.keys():
            yield from _named(function.__globals__[name], names)


def _named(found: object, names: set[str]) -> Iterator[object]:
    """A thing, and those of its attributes that code names if it is a module or a class (the one of `super()`, say)."""
    yield found
    holders = found.__mro__ if isinstance(found, type) else [found] if isinstance(found, ModuleType) else []
    for holder in holders:
        yield from (vars(holder)[name] for name in names & vars(holder).keys())


def _names(code: CodeType) -> set[str]:
    """Globals and attributes that the code and the functions in it name."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _package(function: FunctionType) -> str:
    return str(function.__globals__.get("__name__")).partition(".")[0]
