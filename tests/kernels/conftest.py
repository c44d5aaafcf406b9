"""Where these tests run: on the CPU in Triton's interpreter, or on a CUDA GPU if there is one."""

from __future__ import annotations

import pytest
import torch

from sglang_sm120.kernels.sm120.fp4_moe.host import schedule, tuning

GPU = torch.cuda.is_available()


@pytest.fixture
def device() -> str:
    return "cuda" if GPU else "cpu"


@pytest.fixture
def sm90(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors are handled as an SM90 would handle them."""
    monkeypatch.setattr(schedule, "is_sm90", lambda device: True)
    monkeypatch.setattr(tuning, "_plan", tuning._plan.__wrapped__)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not GPU:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
