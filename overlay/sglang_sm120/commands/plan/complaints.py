"""What stopped a launch inside SGLang, said in one line that names the flags, the file or the directory to change."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_sm120 import files, settings
from sglang_sm120.upstream import shadowed

_REFUSED = "supported for deterministic inference, but you explicitly specified 'dsv4'"
_REMEDY = f"; set {settings.BATCH_INVARIANT.name}=1 to have batch-invariant experts and start it all the same"
# Flags whose value is a directory, or else the name of a model that SGLang asks a hub for.
_DIRECTORIES = ("--speculative-draft-model-path", "--tokenizer-path")
_HUB = re.compile(r"huggingface\.co|Repo id must|is not a local folder|offline mode|HFValidationError")
_OF_CONFIG = re.compile(r"Validation error for field ")  # transformers', of one of its configurations
# SGLang's words for a flag that it does not name, and the value that works.
_MEANT = {
    r"\btopk == 1\b": ("--speculative-eagle-topk", "--speculative-eagle-topk 1"),
    r"\bspeculative algorithms? (?:is|are) supported\b": ("--speculative-algorithm", None),
}


def message(error: BaseException, flags: Sequence[str], model: str | None = None) -> str:
    """The error in one line; where it says nothing of itself, the line of source that raised it.

    Args:
        error: what ended the launch.
        flags: SGLang's flags as given, those of a `--config` file among them.
        model: the checkpoint's directory, whose config.json may be meant.
    """
    return _say(error, flags, model) + (_REMEDY if _REFUSED in str(error) else "")


def _say(error: BaseException, flags: Sequence[str], model: str | None) -> str:
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
    keys = _keys_in(text, _configuration(model))
    if not text or isinstance(error, (AttributeError, IndexError, KeyError, TypeError, ZeroDivisionError)):
        return (
            f"SGLang fails with {type(error).__name__} {text} at {where}; check the flags and {keys or 'config.json'}"
        )
    return _with_flags(text, flags, keys)


def _with_flags(text: str, flags: Sequence[str], keys: str) -> str:
    """SGLang's complaint, where it names neither a flag nor a file, with what it means as that was given.

    Those are a directory that is none, the flags and the keys of config.json whose words stand in it, also in the
    plural; if none do, all flags are named.
    """
    if "--" in text or "config.json" in text:
        return text
    given = as_given(flags)
    absent = [
        given[f] for f in _DIRECTORIES if f in given and not Path(re.split(r"[ =]", given[f], maxsplit=1)[-1]).is_dir()
    ]
    if _HUB.search(text) and absent:
        return f"{absent[0]} is no directory, and SGLang finds no model of that name: {text}"
    for words, (flag, cure) in _MEANT.items():
        if cure and re.search(words, text):
            return f"{text} ({given.get(flag, f'{flag} is not given')}; {cure} works)"
        if re.search(words, text) and flag in given:
            return f"{text} ({given[flag]})"
    words = text.lower().replace("_", " ")
    names = {flag: re.escape(flag.strip("-").replace("-", " ")) for flag in given}
    meant = [given[flag] for flag in given if re.search(rf"\b{names[flag]}s?\b", words)]
    if keys or _OF_CONFIG.match(text):
        return f"{text} ({', '.join([*meant, keys or 'config.json'])})"
    meant = meant or list(given)
    return f"{text} ({', '.join(meant)})" if meant else text


def as_given(flags: Sequence[str]) -> dict[str, str]:
    """Flag -> flag and value as given, of several the last, as SGLang takes them."""
    given: dict[str, str] = {}
    name = ""
    for word in flags:
        if word.startswith("--"):
            name = word.partition("=")[0]
            given[name] = word
        elif name:
            given[name] += f" {word}"
    return given


def _configuration(model: str | None) -> dict[str, Any]:
    """Key -> value of config.json and of the objects in it; nothing where it cannot be read."""
    try:
        found = json.loads(Path(model or "", "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return _flat(found) if isinstance(found, dict) else {}


def _flat(found: Mapping[str, Any]) -> dict[str, Any]:
    inner = {k: v for value in found.values() if isinstance(value, dict) for k, v in value.items()}
    return inner | dict(found)


def _keys_in(text: str, config: Mapping[str, Any]) -> str:
    """`config.json: kv_lora_rank is null`, of the keys of several words that stand in a text; empty without one."""
    keys = [k for k in config if "_" in k and re.search(rf"(?<!\w){re.escape(k)}(?!\w)", text)]
    said = [f"{k} is {json.dumps(config[k])[:40]}" for k in keys if not isinstance(config[k], dict)]
    return f"config.json: {', '.join(said)}" if said else ""
