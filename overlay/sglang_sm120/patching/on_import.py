"""Run an action right after a module is imported, or now if it is already.

SGLang calls plugins before a launcher imports its model code and after a scheduler has. Importing that code early would
freeze values that SGLang reads from the environment at import, so the overlay waits for SGLang to do it. An exception
of an action that waited ends the process: nothing goes on half patched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.actions:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._run_after(spec)
                return spec
        return None

    def _run_after(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        if loader is None:
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for action in self.actions.get(spec.name, ()):
                _run(action, module)
            self.actions.pop(spec.name, None)

        loader.exec_module = exec_module  # type: ignore[method-assign]


def _run(action: Action, module: ModuleType) -> None:
    """SGLang skips a model whose import raises an `Exception`; nothing may go on half patched, so leave otherwise."""
    try:
        action(module)
    except Exception as error:
        raise SystemExit(f"sglang-sm120: {error}") from error


_FINDER = _Finder()


def when_imported(name: str, action: Action) -> bool:
    """Run `action(module)` once the module `name` has been imported; True if that is now."""
    module = sys.modules.get(name)
    if module is not None:
        if getattr(module.__spec__, "_initializing", False):
            raise RuntimeError(f"{name} is being imported at this moment; load plugins before or after, not within it")
        action(module)
        return True
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.actions.setdefault(name, []).append(action)
    return False
