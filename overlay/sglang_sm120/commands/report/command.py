"""`sglang-sm120 report`: doctor, selftest, tune and bench in one file, for an issue or a pull request."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from sglang_sm120 import __version__, files
from sglang_sm120.commands.bench import command as bench
from sglang_sm120.commands.bench import server
from sglang_sm120.commands.bench import text as bench_text
from sglang_sm120.commands.doctor import command as doctor
from sglang_sm120.commands.selftest import command as selftest
from sglang_sm120.commands.tune import command as tune
from sglang_sm120.commands.tune import runner_text, runners, whole

SCHEMA, FILE = 1, "sglang-sm120-report.json"
_RENDER: dict[str, Callable[[dict[str, Any]], str]] = {
    "doctor": doctor.render,
    "selftest": selftest.render_any,
    "tune": runner_text.render,
    "bench": bench_text.render,
}
# What a part ends in where it cannot be done here; RuntimeError is torch's, out of memory among them.
_CANNOT = (ValueError, OSError, ImportError, RuntimeError)


def make(arguments: argparse.Namespace, progress: Callable[..., None]) -> dict[str, Any]:
    """All parts; one that cannot be done here is left out with the reason, and an interruption ends the rest.

    Returns:
        A document with the parts under their names; `left_out` has part -> reason.
    """
    document: dict[str, Any] = {"schema": SCHEMA, "kind": "report", "overlay": __version__, "errors": []}
    document |= {"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "left_out": {}}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "doctor": lambda: _doctor(),
        "selftest": lambda: selftest.run(progress=lambda line: progress(f"selftest: {line}", 0.1)),
        "tune": lambda: _tune(arguments, progress),
        "bench": lambda: _bench(arguments, progress),
    }
    for name, part in parts.items():
        try:
            document[name] = part()
            if "command" in document[name]:  # this one's words have the server's address
                document[name]["command"] = ["sglang-sm120", name]
        except _CANNOT as error:
            document["left_out"][name] = str(error)
        except KeyboardInterrupt:
            document["left_out"][name] = "interrupted"
            break
    found = [f"{name}: {error}" for name in parts if name in document for error in document[name]["errors"]]
    private = (arguments.url or "", str(arguments.model_path or ""))
    document["errors"] = [bench.without_private(error, *private) for error in found]
    document["left_out"] = {n: bench.without_private(why, *private) for n, why in document["left_out"].items()}
    return dict(files.shareable(document))


def _doctor() -> dict[str, Any]:
    """Without the values of settings, which may be anybody's paths."""
    found = doctor.examine()
    return found | {"settings": {name: files.shareable(value) for name, value in found["settings"].items()}}


def _tune(arguments: argparse.Namespace, progress: Callable[..., None]) -> dict[str, Any]:
    """The runners of the checkpoint, measured now or before; without a checkpoint whatever was measured here."""
    if arguments.model_path is None:
        found = runners.check()
        if found["problem"]:
            raise tune.TuneError(f"{found['problem']}; --model DIR measures them")
        return found
    wanted = whole.jobs_of([], arguments.model_path, arguments.tp, arguments.ep)
    return runners.run(wanted, arguments.minutes, progress=progress)


def _bench(arguments: argparse.Namespace, progress: Callable[..., None]) -> dict[str, Any]:
    if arguments.url is None:
        raise server.ServerError("no server was named; --url URL measures one")
    loads = (arguments.concurrency, arguments.lengths, arguments.output)
    return bench.run(arguments.url, *loads, model=arguments.model_path, progress=progress)


def render(document: dict[str, Any]) -> str:
    """One page: each part as its own command shows it."""
    lines = [f"sglang-sm120 {document['overlay']} report, {document['started']}"]
    for name, show in _RENDER.items():
        lines += ["", f"== {name}"]
        lines += [show(document[name]) if name in document else f"left out: {document['left_out'].get(name, '')}"]
    return "\n".join(lines)
