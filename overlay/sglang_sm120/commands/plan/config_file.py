"""`--config FILE` among SGLang's flags: the lines of the file are flags too, and are judged as those are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

MODEL_FLAGS = ("--model-path", "--model")


def expanded(flags: Sequence[str]) -> list[str]:
    """The flags with the file's among them, in the order in which SGLang reads them; as they are without a file.

    Raises:
        ValueError: SGLang's: no such file, no YAML of flags, a flag that the file cannot have.
    """
    if "--config" not in flags:
        return list(flags)
    import argparse

    from sglang.srt.server_args import ServerArgs

    try:
        from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger
    except ImportError:  # below SGLang 0.5.19
        from sglang.srt.server_args_config_parser import ConfigArgumentMerger

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return [str(word) for word in ConfigArgumentMerger(parser).merge_config_with_args(list(flags))]


def require_one_model(flags: Sequence[str], read: Sequence[str], model: str) -> None:
    """Stop where a launch with the file would serve another model than the plan's, or would not read the file at all.

    Args:
        flags: as given.
        read: `expanded(flags)`.
        model: checkpoint directory of the plan.

    Raises:
        SystemExit: names the flag, its value and what is expected.
    """
    joined = next((flag for flag in flags if flag.startswith("--config=")), None)
    if joined is not None:
        raise SystemExit(f"SGLang reads no file from {joined}; write two words, --config {joined.partition('=')[2]}")
    of_file = f"--config {flags[list(flags).index('--config') + 1]} has" if "--config" in flags else "the flags have"
    for name, value in _pairs(read):
        names_model = name in MODEL_FLAGS or (len(name) > len("--model-") and MODEL_FLAGS[0].startswith(name))
        if names_model and not _same(value, model):
            raise SystemExit(
                f"{of_file} {name.lstrip('-')} {value}, which a launch would serve; plan takes {model} of --model: "
                "make them the same, or leave it out"
            )


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word, following in itertools.pairwise([*words, ""]):
        name, joined, value = word.partition("=")
        yield name, value if joined else following


def _same(one: str, other: str) -> bool:
    return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()
