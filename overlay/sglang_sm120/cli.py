"""The command `sglang-sm120`. Exit status: 0 good, 1 a problem was found, 2 wrong usage, 130 interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # whatever is imported before `main` runs cannot be interrupted without a traceback
    import argparse
    from pathlib import Path

GOOD, PROBLEM = 0, 1  # argparse itself exits with 2
INTERRUPTED = 130  # 128 + SIGINT, as shells count


def _plan(arguments: argparse.Namespace, flags: list[str]) -> int:
    from sglang_sm120.commands.plan import command as plan
    from sglang_sm120.commands.plan import document

    made = plan.make(arguments.model, flags, arguments.arch, arguments.gpu_memory_gib, arguments.stock)
    return _answer(document.to_json(made), arguments.json, lambda _: plan.render(made))


def _doctor(arguments: argparse.Namespace, _flags: list[str]) -> int:
    from sglang_sm120.commands.doctor import command as doctor

    return _answer(doctor.examine(), arguments.json, lambda found: doctor.render(found, arguments.fix_hints))


def _selftest(arguments: argparse.Namespace, _flags: list[str]) -> int:
    import json

    from sglang_sm120 import files
    from sglang_sm120.commands import interrupts
    from sglang_sm120.commands.selftest import command as selftest

    receipt: Path | None = arguments.receipt
    problem = _unwritable("--receipt", receipt)
    if problem:
        return _say(problem, arguments.json)
    try:
        with interrupts.restored():
            if arguments.sm120_code:
                document = selftest.run_sm120_code(arguments.triton, arguments.lean, arguments.minutes, _progress)
            else:
                document = selftest.run(arguments.device, arguments.full, _progress)
    except (ValueError, ImportError, RuntimeError) as error:  # RuntimeError: torch's, out of memory among them
        return _say(f"selftest cannot run: {error}{_hint(error)}", arguments.json)
    status = _answer(document, arguments.json, selftest.render_any)
    if receipt:
        try:
            files.write_whole(receipt, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            return _say(f"--receipt {receipt} cannot be written: {error.strerror}")
        _progress(f"Receipt: {receipt}; to share it, add it to benchmarks/receipts/")
    return status


def _tune(arguments: argparse.Namespace, _flags: list[str]) -> int:
    from sglang_sm120.checkpoint.inspection import CheckpointError
    from sglang_sm120.commands import interrupts
    from sglang_sm120.commands.tune import command as tune
    from sglang_sm120.commands.tune import runners, whole

    shapes = list(arguments.shapes or [])
    problem = _unwritable("--receipt", arguments.receipt)
    if problem:
        return _say(problem, arguments.json)
    try:
        if arguments.check:
            return _answer(whole.check(arguments, shapes), arguments.json, whole.render)
        with interrupts.restored():
            document = whole.run(arguments, shapes, _progress)
    except (tune.TuneError, runners.RunnersError, CheckpointError) as error:
        return _say(error, arguments.json)
    except (ImportError, RuntimeError) as error:  # RuntimeError: torch's, out of memory among them
        return _say(f"tune cannot run: {error}{_hint(error)}", arguments.json)
    except KeyboardInterrupt:
        _say("interrupted; what was measured is kept, and the same command goes on from there")
        return INTERRUPTED
    if arguments.receipt:
        _write_receipt(arguments.receipt, document, whole.pictures(document))
    return _answer(document, arguments.json, whole.render)


def _verify(arguments: argparse.Namespace, _flags: list[str]) -> int:
    from sglang_sm120.commands import verify

    try:
        document = verify.run(arguments.url, arguments.reference, arguments.timeout, arguments.api_key)
    except verify.ServerError as error:
        return _say(error, arguments.json)
    return _answer(document, arguments.json, verify.render)


def _bench(arguments: argparse.Namespace, _flags: list[str]) -> int:
    from sglang_sm120.commands import progress
    from sglang_sm120.commands.bench import command as bench
    from sglang_sm120.commands.bench import server, text

    _share_key(arguments)
    problem = _unwritable("--receipt", arguments.receipt)
    if problem:
        return _say(problem, arguments.json)
    try:
        if arguments.compare:
            return _answer(text.compare(*arguments.compare), arguments.json, text.render)
        with progress.bar() as shown:
            document = bench.run(
                arguments.url, arguments.concurrency, arguments.lengths, arguments.output, arguments.model_path, shown
            )  # fmt: skip
    except (server.ServerError, text.ReceiptError) as error:
        return _say(error, arguments.json)
    if arguments.receipt:
        _write_receipt(arguments.receipt, document, text.pictures(document))
    return _answer(document, arguments.json, text.render)


def _report(arguments: argparse.Namespace, _flags: list[str]) -> int:
    from pathlib import Path

    from sglang_sm120.commands import interrupts, progress
    from sglang_sm120.commands.report import command as report

    _share_key(arguments)
    out = arguments.out or Path(report.FILE)
    problem = _unwritable("--out", out)
    if problem:
        return _say(problem, arguments.json)
    with interrupts.restored(), progress.bar() as shown:
        document = report.make(arguments, shown)
    _write_receipt(out, document)
    return _answer(document, arguments.json, report.render)


COMMANDS: dict[str, Callable[[argparse.Namespace, list[str]], int]] = {
    "plan": _plan,
    "doctor": _doctor,
    "selftest": _selftest,
    "tune": _tune,
    "verify": _verify,
    "bench": _bench,
    "report": _report,
}


def _unwritable(flag: str, file: Path | None) -> str | None:
    """Why what is measured could not be kept in a file, known before it is measured; None where it can, or without."""
    import os

    if file is None:
        return None
    if file.is_dir():
        return f"{flag} {file} cannot be written: it is a directory; name a file"
    if not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
        return f"{flag} {file} cannot be written: {file.parent} does not exist, is no directory or is read-only"
    return None


def _share_key(arguments: argparse.Namespace) -> None:
    """Put the server's key where SGLang's benchmark, a process of its own, looks for one."""
    import os

    from sglang_sm120.commands import client

    if arguments.api_key:
        os.environ[client.API_KEY] = arguments.api_key


def _answer(document: dict[str, Any], as_json: bool, render: Callable[[dict[str, Any]], str]) -> int:
    from sglang_sm120.commands import terminal

    if as_json:
        terminal.show(terminal.as_json(document), None)
    else:
        terminal.show(render(document), terminal.width())
    return PROBLEM if document["errors"] else GOOD


def _hint(error: Exception) -> str:
    """What to install where a package that brings the kernel's is missing."""
    missing = (getattr(error, "name", None) or "").partition(".")[0]
    return "; install SGLang, which brings it: pip install sglang" if missing in ("torch", "triton") else ""


def _write_receipt(file: Path, document: dict[str, Any], pictures: dict[str, str] | None = None) -> None:
    """The document without the place of this machine's files, charts beside it. An OSError is `main`'s."""
    import json
    import re

    from sglang_sm120 import files

    files.write_whole(file, json.dumps(files.shareable(document), indent=1) + "\n")
    for name, chart in (pictures or {}).items():
        files.write_whole(file.with_name(f"{file.stem}-{re.sub('[^a-z0-9]+', '-', name.lower())}.svg"), chart)
    _progress(f"Receipt: {file}; to share it, add it to benchmarks/receipts/")


def _progress(line: str) -> None:
    from sglang_sm120.commands import interrupts

    interrupts.check()
    print(line, file=sys.stderr, flush=True)


def _say(problem: object, as_json: bool = False) -> int:
    """Say on stderr why there is no answer; `as_json` puts it into a document in the answer's place too."""
    print(f"sglang-sm120: {problem}", file=sys.stderr, flush=True)
    if as_json:
        import json

        from sglang_sm120 import __version__
        from sglang_sm120.commands import terminal

        terminal.show(json.dumps({"schema": 1, "overlay": __version__, "errors": [str(problem)]}, indent=1), None)
    return PROBLEM


def parser() -> argparse.ArgumentParser:
    """The command line, for who documents or checks it."""
    from sglang_sm120.commands import arguments

    return arguments.parser()


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console script. What follows `--` belongs to SGLang."""
    words = sys.argv[1:] if argv is None else argv
    try:
        from sglang_sm120.commands import interrupts, terminal
        from sglang_sm120.commands.arguments import parse, wants_json

        terminal.prepare()
        with interrupts.remembered(INTERRUPTED), interrupts.restored():
            arguments, flags = parse(words)
            return COMMANDS[arguments.command](arguments, flags)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # the disk behind stdout, a home, a limit: the message names it
        return _say(error, wants_json(words) and not isinstance(error, terminal.OutputError))


if __name__ == "__main__":
    sys.exit(main())
