"""A layer's layout: what an exception leaves behind, and what alone gets out of it."""

import pytest

from sglang_sm120.moe.layout_state import Layout, LayoutState


def test_a_change_that_ends_well():
    state = LayoutState()
    assert state.layout is Layout.CHECKPOINT
    with state.changing(Layout.PREPARED):
        assert state.layout is Layout.BROKEN
    assert (state.layout, state.cause) == (Layout.PREPARED, None)


@pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt()])
def test_a_change_that_does_not(error):
    state = LayoutState()
    with pytest.raises(type(error)), state.changing(Layout.PREPARED):
        raise error
    assert state.layout is Layout.BROKEN
    assert state.cause.startswith(type(error).__name__)
    state.rewritten()
    assert (state.layout, state.cause) == (Layout.CHECKPOINT, None)
