"""Text for a terminal of any width and encoding, or for a pipe."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import textwrap
from typing import Any

NARROWEST = 40  # below this, wrapping helps nobody
_LABEL = re.compile(r"\S+(?: \([^)]*\))?\s{2,}|(?:warning|setting|missing) ")


def prepare() -> None:
    """Stand-ins for streams that the caller closed: the exit status is all that is wanted then."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - lives as long as the process


class OutputError(OSError):
    """What was to be printed cannot be written."""


def show(text: str, columns: int | None) -> None:
    """Print in lines of at most `columns` (None: as they are). A reader that has seen enough (`head`) is no error.

    Raises:
        OutputError: a full disk behind stdout.
    """
    encoding = sys.stdout.encoding or "utf-8"
    # A path may hold what the terminal cannot show; escaped before it is wrapped, since escapes are longer.
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(wrapped(text, columns))
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered must not fail once more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"cannot write the answer: {error.strerror}") from error


def as_json(document: dict[str, Any]) -> str:
    """The document as any reader of JSON takes it: numbers that JSON does not have are null."""
    return json.dumps(_finite(document), indent=1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def width() -> int | None:
    """Columns of the terminal; None for a pipe or file, whose readers want whole lines."""
    return max(NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def wrapped(text: str, columns: int | None) -> str:
    """Lines of at most `columns`, cut at spaces, the rest indented under the text that follows a line's label."""
    if columns is None:
        return text
    lines = []
    for line in text.split("\n"):
        label = _LABEL.match(line)
        indent = " " * (label.end() if label and label.end() < columns // 2 else 4)
        wrap = textwrap.TextWrapper(columns, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True)
        lines += wrap.wrap(line) if len(line) > columns else [line]
    return "\n".join(lines)
