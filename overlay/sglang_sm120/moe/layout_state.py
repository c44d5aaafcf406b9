"""In which layout a layer's expert parameters are, and the one place where that changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum


class Layout(Enum):
    """What the bytes of the parameters mean."""

    CHECKPOINT = "the checkpoint's layout"
    PREPARED = "the kernel's layout"
    BROKEN = "no known layout"


class LayoutState:
    """The layout of one layer's expert parameters.

    Attributes:
        layout: what the bytes mean now.
        cause: the exception that left the bytes broken; None otherwise.
    """

    def __init__(self) -> None:
        self.layout = Layout.CHECKPOINT
        self.cause: str | None = None

    @contextmanager
    def changing(self, to: Layout) -> Iterator[None]:
        """The bytes are rewritten inside; an exception on the way leaves them broken."""
        self.layout, self.cause = Layout.BROKEN, "an interruption"
        try:
            yield
        except BaseException as error:
            self.cause = f"{type(error).__name__}: {error}"
            raise
        self.layout, self.cause = to, None

    def rewritten(self) -> None:
        """Every byte of broken parameters has been written again, in the checkpoint's layout."""
        self.layout, self.cause = Layout.CHECKPOINT, None
