"""How this project writes files, and how it names them to people."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

_PATH = re.compile(r"(?<![\w:/.<])~?(?:/[^\s/'\":,;()\]\[]+)+/?")  # not a URL's


def user_home() -> Path | None:
    """The user's home directory; None where neither HOME nor the user database has one."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def short(path: Path | str) -> str:
    """The path with the home directory as `~`, so that what users publish does not hold their name."""
    base, text = user_home(), str(path)
    if base is None or base == Path("/"):
        return text
    return "~" + text.removeprefix(str(base)) if Path(text).is_relative_to(base) else text


def write_whole(file: Path, text: str) -> None:
    """Write all or nothing: an interruption leaves the old file or the new one, and nothing beside it."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def shareable(value: Any) -> Any:
    """A document for others: the last part of each path, whether it is a value, a word of a command or within text."""
    if isinstance(value, dict):
        return {key: shareable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shareable(item) for item in value]
    return _PATH.sub(lambda found: found[0].rstrip("/").rpartition("/")[2], value) if isinstance(value, str) else value
