"""The end-to-end scripts as modules."""

import importlib
from pathlib import Path

import pytest

E2E = Path(__file__).resolve().parents[2] / "benchmarks" / "e2e"


@pytest.fixture
def e2e(monkeypatch):
    """A module of the end-to-end scripts, by name."""
    monkeypatch.syspath_prepend(E2E)
    return importlib.import_module
