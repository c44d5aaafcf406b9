"""Which target layers SGLang leaves out of NVFP4: the rule of its ModelOpt configuration for `ignore`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def excludes(quantization: Mapping[str, Any], block: str) -> bool:
    """Whether `quantization_config.ignore` names the routed experts of a target block (`layers.3`).

    An entry fits SGLang's name of the module, or one of the name's parts, as a whole; `*` stands for anything.
    """
    entries = quantization.get("ignore")
    module = f"model.{block}.mlp.experts"
    names = (module, *module.split("."))
    return isinstance(entries, list) and any(_fits(str(entry), name) for entry in entries for name in names)


def _fits(entry: str, name: str) -> bool:
    pattern = _pattern(entry)
    return pattern is not None and pattern.fullmatch(name) is not None


@lru_cache(maxsize=8192)
def _pattern(entry: str) -> re.Pattern[str] | None:
    """SGLang's, which leaves all but dots and stars to `re`; None where that cannot read the entry."""
    try:
        return re.compile(entry.replace(".", r"\.").replace("*", ".*"))
    except re.error:
        return None
