"""Where this project keeps files, how it writes them, and how it names them to people."""

from __future__ import annotations

import os
from pathlib import Path

HOME = "SGLANG_SM120_HOME"


class NoHomeError(OSError):
    """There is no home directory to keep files in; the message names the variables to set."""

    def __init__(self) -> None:
        super().__init__(f"there is no home directory: HOME is unset; set it, or {HOME}")


def user_home() -> Path | None:
    """The user's home directory; None where neither HOME nor the user database has one."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def home() -> Path:
    """SGLANG_SM120_HOME, else `~/.cache/sglang-sm120`; it need not exist.

    Raises:
        NoHomeError: the variable is unset and the user has no home directory.
    """
    given = os.environ.get(HOME)
    if given:
        return Path(given)
    base = user_home()
    if base is None:
        raise NoHomeError
    return base / ".cache" / "sglang-sm120"


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
