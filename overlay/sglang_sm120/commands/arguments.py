"""The command line of `sglang-sm120`: its subcommands and flags, and what is said of a misspelt one."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from sglang_sm120 import __version__
from sglang_sm120.commands.bench import command as bench
from sglang_sm120.commands.client import API_KEY, is_key, without_password
from sglang_sm120.commands.plan.simulate import SIMULATED
from sglang_sm120.commands.tune import command as tune
from sglang_sm120.commands.tune import whole
from sglang_sm120.kernels.sm120.tile_tables import ROUTINGS


class Parser(argparse.ArgumentParser):
    """One that knows its options and its subcommands by name.

    Wrong usage is one JSON document on stdout too where the command line asks for JSON.

    Attributes:
        options: as they are written, `--json` and `-h`.
        commands: name -> parser of each subcommand.
    """

    as_json = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.options: list[str] = []
        self.commands: dict[str, Parser] = {}
        super().__init__(*args, **kwargs)

    def add_argument(self, *names: str, **how: Any) -> argparse.Action:
        self.options += [name for name in names if name.startswith("-")]
        return super().add_argument(*names, **how)

    def error(self, message: str) -> NoReturn:
        if Parser.as_json:
            print(json.dumps({"schema": 1, "overlay": __version__, "errors": [message]}, indent=1), flush=True)
        super().error(message)


def wants_json(words: list[str]) -> bool:
    """Whether a command line asks for JSON; what follows `--` belongs to SGLang."""
    return "--json" in words[: words.index("--") if "--" in words else len(words)]


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command with its flags, and what follows `--`, which belongs to SGLang. Wrong usage exits with 2."""
    Parser.as_json = wants_json(words)
    at = words.index("--") if "--" in words else len(words)
    ours, flags = words[:at], words[at + 1 :]
    top = parser()
    commands = top.commands
    first = next((w for w in ours if not w.startswith("-")), None)
    if first is not None and first not in commands:
        top.error(f"{first!r} is no command{_meant(first, commands) or ';'} the commands are {', '.join(commands)}")
    arguments, unknown = top.parse_known_args(ours)
    command = commands[arguments.command]
    if unknown:
        word = unknown[0].partition("=")[0]
        meant = _meant(word, command.options) if word.startswith("-") else ""
        theirs = "; flags of SGLang come after --" if arguments.command == "plan" and not meant else ""
        # Without their values: one may be a key behind a misspelt --api-key.
        names = [word.partition("=")[0] for word in unknown if word.startswith("-")] or unknown
        command.error(f"unrecognized arguments: {' '.join(names)}{meant}{theirs}")
    if flags and arguments.command != "plan":
        command.error(f"{arguments.command} takes nothing after --")
    if arguments.command == "selftest" and not arguments.sm120_code:
        for flag in ("triton", "lean", "minutes"):
            if getattr(arguments, flag):
                command.error(f"--{flag} is for --sm120-code")
    if arguments.command == "tune" and not (arguments.shapes or arguments.model_path or arguments.check):
        command.error("give --model-path DIR or --shapes E,H,I,K")
    return arguments, flags


def _meant(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


def parser() -> Parser:
    """The command line, all subcommands."""
    top = Parser(prog="sglang-sm120", description="DeepSeek-V4 on SM120 and SM121 GPUs with SGLang.")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_plan(commands)
    _add_doctor(commands)
    _add_selftest(commands)
    _add_tune(commands)
    _add_verify(commands)
    _add_bench(commands)
    _add_report(commands)
    top.commands = dict(commands.choices)
    return top


def _add_plan(commands: Any) -> None:
    p = commands.add_parser(
        "plan",
        help="show which MoE kernels a launch would run, without GPU or weights",
        usage="sglang-sm120 plan --model DIR [--arch ARCH]\n"
        "         [--gpu-memory-gib N] [--stock] [--json]\n"
        "         [-- SGLANG FLAGS]",
        description="Let the installed SGLang resolve a launch as if on an architecture, and show the MoE kernels.",
    )
    p.add_argument(
        "--model", required=True, type=_path, metavar="DIR", help="checkpoint: config.json and headers suffice"
    )
    p.add_argument("--arch", choices=SIMULATED, help="default: this machine's GPU, else sm120")
    p.add_argument("--gpu-memory-gib", type=_positive, default=96, metavar="N", help="memory of each GPU (96)")
    p.add_argument("--stock", action="store_true", help="without the overlay")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout, logs on stderr")


def _add_doctor(commands: Any) -> None:
    p = commands.add_parser("doctor", help="check this machine: versions, GPUs, patches, conflicts")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    p.add_argument("--fix-hints", action="store_true", help="add what to do or to expect on this machine")


def _add_selftest(commands: Any) -> None:
    p = commands.add_parser("selftest", help="check the kernel on this machine; on a GPU also time it")
    p.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    p.add_argument("--full", action="store_true", help="more shapes and timings")
    p.add_argument("--sm120-code", action="store_true", help="on an SM90: run what Triton compiles for SM120 instead")
    p.add_argument("--triton", type=_path, nargs="+", default=[], metavar="DIR", help="--sm120-code: other Tritons too")
    p.add_argument("--lean", action="store_true", help="--sm120-code: each tile on one layer only")
    p.add_argument("--minutes", type=_minutes, metavar="M", help="--sm120-code: end what still runs after these (30)")
    p.add_argument("--receipt", type=_path, metavar="FILE", help="write the document with raw samples there")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _add_tune(commands: Any) -> None:
    p = commands.add_parser(
        "tune",
        help="check and time MoE runners on this GPU, and tiles of the kernel; launches use both",
        description="Check each MoE runner that SGLang has for a checkpoint's layers against float64 and time it on "
        "this GPU, then measure tiles for our kernel, which keep every bit. Launches read both tables. Interrupted or "
        "out of time, the same command goes on.",
    )
    p.add_argument("--model-path", "--model", type=_path, metavar="DIR", help="checkpoint whose experts are meant")
    p.add_argument("--tp", type=_positive, default=1, metavar="N", help="of the launch (1)")
    p.add_argument("--ep", type=_positive, default=1, metavar="N", help="of the launch (1)")
    p.add_argument(
        "--shapes", "--shape", nargs="+", type=_checked(tune.shape), metavar="E,H,I,K",
        help="experts, hidden, intermediate of one rank, top-k instead; ,nvfp4 after it for that format",
    )  # fmt: skip
    p.add_argument("--only", choices=whole.PARTS, help="measure these alone; default: runners, then tiles")
    p.add_argument("--runners", nargs="+", metavar="NAME", help="try these; default: all that this GPU has kernels for")
    p.add_argument("--minutes", type=_minutes, default=10.0, metavar="M", help="at most this long (10)")
    p.add_argument(
        "--tokens", type=_checked(tune.tokens), default=tune.DEFAULT_TOKENS, metavar="T,T",
        help="batch sizes, powers of two (1 to 256)",
    )  # fmt: skip
    p.add_argument("--routing", choices=ROUTINGS, default="uniform", help="how tokens choose experts (uniform)")
    p.add_argument(
        "--out", type=_path, metavar="FILE", help="default: where launches look; of the tiles, without --only"
    )
    p.add_argument("--receipt", type=_path, metavar="FILE", help="write the document with raw samples there")
    p.add_argument("--check", action="store_true", help="measure nothing; say whether a launch uses a table")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _add_verify(commands: Any) -> None:
    p = commands.add_parser("verify", help="check a running server: ranks, kernels, canary prompts, acceptance length")
    p.add_argument("--url", required=True, type=_url, help="of the server, as in http://127.0.0.1:30000")
    p.add_argument(
        "--reference", type=_url, metavar="URL", help="the same checkpoint without speculation; answers must agree"
    )
    add_api_key(p)
    p.add_argument("--timeout", type=_positive, default=60, metavar="S", help="seconds for each request (60)")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")


def add_api_key(parser: Parser) -> None:
    """The key of a server that was started with SGLang's `--api-key`; the flag wins over the variable."""
    parser.add_argument(
        "--api-key",
        type=_secret,
        metavar="KEY",
        help=f"of the server; default: the variable {API_KEY}",
    )


def _secret(text: str) -> str:
    """A header's value; what is refused is not repeated."""
    if not is_key(text):
        raise argparse.ArgumentTypeError("expected printable ASCII (the value is not shown)")
    return text


def _add_bench(commands: Any) -> None:
    p = commands.add_parser(
        "bench",
        help="SGLang's serving benchmark on a running server, over several loads; or compare two receipts",
        description="Run SGLang's own serving benchmark against a server at several loads, with what the server says "
        "of itself. The receipt holds no path, host, key or prompt.",
    )
    which = p.add_mutually_exclusive_group(required=True)
    which.add_argument("--url", type=_url, help="of the server, as in http://127.0.0.1:30000")
    which.add_argument("--compare", type=_path, nargs=2, metavar=("A", "B"), help="two receipts side by side instead")
    add_api_key(p)
    p.add_argument("--model-path", "--model", type=_path, metavar="DIR", help="checkpoint, for its tokenizer")
    _add_loads(p)
    p.add_argument("--receipt", type=_path, metavar="FILE", help="write the document there, and a picture beside it")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _add_loads(p: Any) -> None:
    for name, default, what in (
        ("--concurrency", bench.CONCURRENCY, "sequences at once"),
        ("--lengths", bench.LENGTHS, "tokens of a prompt"),
    ):
        text = ",".join(map(str, default))
        p.add_argument(name, type=_counts, default=default, metavar="N,N", help=f"{what} ({text})")
    p.add_argument("--output", type=_positive, default=bench.OUTPUT, metavar="N", help=f"of an answer ({bench.OUTPUT})")


def _add_report(commands: Any) -> None:
    p = commands.add_parser(
        "report",
        help="doctor, selftest, tune and bench in one file, for an issue or a pull request",
        description="What an issue or a pull request needs, in one file that holds no path, host, key or prompt.",
    )
    p.add_argument("--model-path", "--model", type=_path, metavar="DIR", help="checkpoint: its runners are measured")
    p.add_argument("--tp", type=_positive, default=1, metavar="N", help="of the launch (1)")
    p.add_argument("--ep", type=_positive, default=1, metavar="N", help="of the launch (1)")
    p.add_argument("--minutes", type=_minutes, default=10.0, metavar="M", help="for the runners, at most (10)")
    p.add_argument("--url", type=_url, help="a running server, which is benchmarked")
    add_api_key(p)
    _add_loads(p)
    p.add_argument("--out", type=_path, metavar="FILE", help="default: sglang-sm120-report.json")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _checked(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """A converter whose ValueError argparse shows as it stands."""

    def converted(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return converted


def _path(text: str) -> Path:
    """An empty word is a shell variable that was not set, and would silently mean the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("'' names no file or directory")
    return Path(text)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0  # a bad port raises
    except ValueError:
        good = False
    if not good:
        raise argparse.ArgumentTypeError(
            f"{without_password(text)!r} is no server's address; expected one as http://127.0.0.1:30000"
        )
    return text


def _above_zero(kind: Callable[[str], float], what: str) -> Callable[[str], float]:
    def converted(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return converted


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(_positive(word)) for word in text.split(","))


_positive = _above_zero(int, "a positive whole number")
_minutes = _above_zero(float, "a positive number of minutes")
