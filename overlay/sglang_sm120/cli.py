"""The command `sglang-sm120`. Exit status: 0 good, 1 a problem was found, 2 wrong usage."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from sglang_sm120 import __version__

GOOD, PROBLEM = 0, 1  # argparse itself exits with 2
INTERRUPTED = 130  # 128 + SIGINT, as shells count


def parser() -> argparse.ArgumentParser:
    """The command line, all subcommands."""
    top = argparse.ArgumentParser(prog="sglang-sm120", description="DeepSeek-V4 on SM120 and SM121 GPUs with SGLang.")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_plan(commands)
    _add_doctor(commands)
    _add_selftest(commands)
    _add_verify(commands)
    return top


def _add_plan(commands: Any) -> None:
    from sglang_sm120.plan import ARCHITECTURES

    p = commands.add_parser(
        "plan",
        help="show which MoE kernels a launch would run, without GPU or weights",
        usage="sglang-sm120 plan --model DIR [--arch ARCH] [--gpu-memory-gib N] [--stock] [--json] [-- SGLANG FLAGS]",
        description="Let the installed SGLang resolve a launch as if on an architecture, and show the MoE kernels.",
    )
    p.add_argument(
        "--model", required=True, type=Path, metavar="DIR", help="checkpoint: config.json and headers suffice"
    )
    p.add_argument("--arch", choices=ARCHITECTURES, help="default: this machine's GPU, else sm120")
    p.add_argument("--gpu-memory-gib", type=_positive, default=96, metavar="N", help="memory of each GPU (96)")
    p.add_argument("--stock", action="store_true", help="without the overlay")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout, logs on stderr")
    p.set_defaults(run=_plan)


def _add_doctor(commands: Any) -> None:
    p = commands.add_parser("doctor", help="check this machine: versions, GPUs, patches, conflicts")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    p.add_argument("--fix-hints", action="store_true", help="add what to do or to expect on this machine")
    p.set_defaults(run=_doctor)


def _add_selftest(commands: Any) -> None:
    p = commands.add_parser("selftest", help="check the kernel on this machine; on a GPU also time it")
    p.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    p.add_argument("--full", action="store_true", help="more shapes and timings")
    p.add_argument("--receipt", type=Path, metavar="FILE", help="write the document with raw samples there")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    p.set_defaults(run=_selftest)


def _add_verify(commands: Any) -> None:
    p = commands.add_parser("verify", help="check a running server: ranks, kernels, canary prompts, acceptance length")
    p.add_argument("--url", required=True, help="of the server, as in http://127.0.0.1:30000")
    p.add_argument("--reference", metavar="URL", help="the same checkpoint without speculation; answers must agree")
    p.add_argument("--timeout", type=_positive, default=60, metavar="S", help="seconds for each request (60)")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    p.set_defaults(run=_verify)


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return value


def _plan(arguments: argparse.Namespace, flags: list[str]) -> int:
    from sglang_sm120 import plan

    document = plan.make(arguments.model, flags, arguments.arch, arguments.gpu_memory_gib, arguments.stock)
    print(json.dumps(document, indent=1) if arguments.json else plan.render(document))
    return PROBLEM if document["errors"] else GOOD


def _doctor(arguments: argparse.Namespace, _flags: list[str]) -> int:
    from sglang_sm120 import doctor

    document = doctor.examine()
    print(json.dumps(document, indent=1) if arguments.json else doctor.render(document, arguments.fix_hints))
    return PROBLEM if document["errors"] else GOOD


def _selftest(arguments: argparse.Namespace, _flags: list[str]) -> int:
    from sglang_sm120 import selftest

    receipt: Path | None = arguments.receipt
    if receipt and not os.access(receipt.parent, os.W_OK):
        return _say(f"--receipt {receipt} cannot be written: {receipt.parent} does not exist or is read-only")
    try:
        document = selftest.run(arguments.device, arguments.full, lambda line: print(line, file=sys.stderr, flush=True))
    except (ValueError, ImportError, RuntimeError) as error:  # RuntimeError: torch's, out of memory among them
        return _say(f"selftest cannot run: {error}")
    print(json.dumps(document, indent=1) if arguments.json else selftest.render(document))
    if receipt:
        try:
            _write_whole(receipt, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            return _say(f"--receipt {receipt} cannot be written: {error.strerror}")
        print(f"Receipt: {receipt}; to share it, add it to benchmarks/receipts/", file=sys.stderr)
    return PROBLEM if document["errors"] else GOOD


def _say(problem: object) -> int:
    print(f"sglang-sm120: {problem}", file=sys.stderr)
    return PROBLEM


def _verify(arguments: argparse.Namespace, _flags: list[str]) -> int:
    from sglang_sm120 import verify

    try:
        document = verify.run(arguments.url, arguments.reference, arguments.timeout)
    except verify.ServerError as error:
        return _say(error)
    print(json.dumps(document, indent=1) if arguments.json else verify.render(document))
    return PROBLEM if document["errors"] else GOOD


def _write_whole(file: Path, text: str) -> None:
    """Write all or nothing: an interrupted run leaves no half file."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console script. What follows `--` belongs to SGLang."""
    words = sys.argv[1:] if argv is None else argv
    ours, flags = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    arguments = parser().parse_args(ours)
    if flags and arguments.command != "plan":
        parser().error(f"{arguments.command} takes nothing after --")
    if sys.stdout is None:  # closed by the caller: the exit status is all that is wanted
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - lives as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may hold what the terminal cannot show
    try:
        status = arguments.run(arguments, flags)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough; the exit must not flush again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PROBLEM
    except OSError as error:  # a full disk behind stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _say(f"cannot write the answer: {error.strerror}")
    return status


if __name__ == "__main__":
    sys.exit(main())
