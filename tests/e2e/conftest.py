"""The end-to-end scripts as modules."""

import importlib
import sys
from pathlib import Path

import pytest

E2E = Path(__file__).resolve().parents[2] / "benchmarks" / "e2e"


@pytest.fixture
def e2e(monkeypatch):
    """A module of the end-to-end scripts, by name. Other scripts have modules of the same names."""
    monkeypatch.syspath_prepend(E2E)
    names = [file.stem for file in E2E.glob("*.py")]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(others)
