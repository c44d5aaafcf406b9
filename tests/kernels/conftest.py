"""Where these tests run: on the CPU in Triton's interpreter, or on a CUDA GPU if there is one."""

from __future__ import annotations

import pytest
import torch

GPU = torch.cuda.is_available()


@pytest.fixture
def device() -> str:
    return "cuda" if GPU else "cpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not GPU:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
