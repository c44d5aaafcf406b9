"""What stopped a launch inside SGLang, said in one line that names the flags, the file or the directory to change."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path

from sglang_sm120 import files, settings
from sglang_sm120.upstream import shadowed

_REFUSED = "supported for deterministic inference, but you explicitly specified 'dsv4'"
_REMEDY = f"; set {settings.BATCH_INVARIANT.name}=1 to have batch-invariant experts and start it all the same"


def message(error: BaseException, flags: Sequence[str]) -> str:
    """The error in one line; where it says nothing of itself, the line of source that raised it."""
    return _say(error, flags) + (_REMEDY if _REFUSED in str(error) else "")


def _say(error: BaseException, flags: Sequence[str]) -> str:
    text = " ".join(str(error).removeprefix("sglang-sm120: ").split())
    if isinstance(error, SystemExit) and text not in ("", "0", "None"):
        return text
    if isinstance(error, SystemExit):
        return "these flags make SGLang end without serving"
    home = files.user_home()
    if isinstance(error, OSError) and home is not None and Path(str(error.filename)).is_relative_to(home):
        return (
            f"SGLang cannot use the home directory ({error.filename}: {error.strerror}), where its stack keeps "
            "compiled kernels; set HOME to a directory that can be written"
        )
    if isinstance(error, ImportError) and (error.name or "").startswith("sglang."):
        shadow = shadowed.shadow_of("sglang")
        if shadow is not None:
            return f"{text}: {shadow.says}; {shadow.hint}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}, {frames[-1].line}" if frames else "nowhere"
    if not text or isinstance(error, (AttributeError, IndexError, KeyError, TypeError, ZeroDivisionError)):
        return f"SGLang fails with {type(error).__name__} {text} at {where}; check the flags and config.json"
    return _with_flags(text, flags)


def _with_flags(text: str, flags: Sequence[str]) -> str:
    """SGLang's complaint, where it names neither a flag nor a file, with the flags that it means as they were given.

    Those are the ones whose words stand in it, also in the plural; if none do, all are named.
    """
    if "--" in text or "config.json" in text:
        return text
    given: dict[str, str] = {}  # flag -> as given; SGLang too takes the last of several
    name = ""
    for word in flags:
        if word.startswith("--"):
            name = word.partition("=")[0]
            given[name] = word
        elif name:
            given[name] += f" {word}"
    words = text.lower().replace("_", " ")
    names = {flag: re.escape(flag.strip("-").replace("-", " ")) for flag in given}
    meant = [given[flag] for flag in given if re.search(rf"\b{names[flag]}s?\b", words)] or list(given)
    return f"{text} ({', '.join(meant)})" if meant else text
