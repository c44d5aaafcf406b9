"""Run an action right after a module is imported, or now if it is already.

SGLang calls plugins before a launcher imports its model code and after a scheduler has. Importing that code early would
freeze values that SGLang reads from the environment at import, so the overlay waits for SGLang to do it. An exception
of an action that waited ends the process: nothing goes on half patched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

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
            find = None if finder is self else getattr(finder, "find_spec", None)  # importlib, too, passes over others
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Then(spec.loader, spec.name, self.actions)
                return spec
        return None


class _Then(Loader):
    """Loads one module as its own loader does, then runs what waits for it.

    A loader may serve many modules (of one zip file, say), so nothing is changed on it. The module keeps it, not this.
    """

    def __init__(self, loader: Loader, name: str, actions: dict[str, list[Action]]) -> None:
        self._loader, self._name, self._actions = loader, name, actions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._loader, "create_module", None)
        return create(spec) if create is not None else None

    def exec_module(self, module: ModuleType) -> None:
        for holder, attribute in ((module, "__loader__"), (module.__spec__, "loader")):
            if getattr(holder, attribute, None) is self:
                setattr(holder, attribute, self._loader)
        if hasattr(self._loader, "exec_module"):
            self._loader.exec_module(module)
        else:
            self._loader.load_module(module.__name__)  # as importlib does with loaders of before Python 3.4
        if module.__name__ != self._name:  # somebody gave this loader to another module
            return
        for action in self._actions.get(self._name, ()):
            _run(action, sys.modules.get(self._name, module))
        self._actions.pop(self._name, None)


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
