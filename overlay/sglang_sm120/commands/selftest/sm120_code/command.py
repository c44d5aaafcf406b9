"""`sglang-sm120 selftest --sm120-code`: `proof` for each Triton and architecture, some at a time, and the receipt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .compiling import ARCHITECTURES, SMS, kernel_digest, require_sm90, sources_digest
from .substitute import RETARGETED, SUBSTITUTIONS
from .tritons import found_in

SCHEMA = 1
AT_ONCE = 4  # each holds up to 15 GB of the GPU
MODULE = "sglang_sm120.commands.selftest.sm120_code.proof"
MINUTES = 30.0
TIMES = "No time is recorded: these are not SM120's instructions at SM120's clocks."


def run(
    tritons: list[Path], lean: bool, about: dict[str, Any], progress: Callable[[str], None] = lambda _line: None,
    minutes: float = MINUTES,
) -> dict[str, Any]:  # fmt: skip
    """All tiles of both architectures with the installed Triton, and with those in the directories.

    Args:
        tritons: directories with other Tritons.
        lean: each tile on one layer only.
        about: `versions` and `device` of this machine.
        minutes: after which a process that still runs is ended, an error of its own; what the others found is kept.

    Raises:
        WrongGpu: this is no SM90.
        ValueError: a directory holds no Triton for this Python.
    """
    require_sm90()
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "sm120-code",
        "command": ["sglang-sm120", *(Path(word).name or word for word in sys.argv[1:])],  # no paths of this machine
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **about,
        "planned_for": {str(sms): name for sms, name in SMS.items()},
        "substitutions": [{"name": s.name, "section": s.section, "states": s.states} for s in SUBSTITUTIONS],
        "sources": sources_digest(),
        "kernel": kernel_digest(),
        "times": TIMES,
    }
    with tempfile.TemporaryDirectory(prefix="sm120-code-") as scratch:
        paths = [None, *found_in(tritons, Path(scratch))]
        jobs = [(path, arch) for path in paths for arch in ARCHITECTURES]
        until = time.monotonic() + 60 * minutes
        workers = max(2, len(os.sched_getaffinity(0)) // min(AT_ONCE, len(jobs)))

        def one(number: int) -> dict[str, Any]:
            path, arch = jobs[number]
            out = Path(scratch) / f"{number}.json"
            return _prove(path, arch, out, ["--lean"] * lean + ["--workers", str(workers)], progress, until)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            document["runs"] = list(pool.map(one, range(len(jobs))))
    document["errors"] = [
        f"Triton {r['triton']} {r['arch']}: {error}" for r in document["runs"] for error in r["errors"]
    ]
    return document


def _prove(
    path: Path | None, arch: str, out: Path, words: list[str], progress: Callable[[str], None], until: float
) -> dict[str, Any]:  # fmt: skip
    """The document of a `proof` process; one without a document is an error itself."""
    command = [sys.executable, "-m", MODULE, "--arch", arch, "--out", str(out), *words]
    before = [str(path)] if path else []
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*before, *filter(None, [os.environ.get("PYTHONPATH")])])}
    name, last = f"Triton {path.name if path else 'installed'}", ""
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    deadline = threading.Timer(max(0.0, until - time.monotonic()), process.kill)
    deadline.start()
    try:
        for line in process.stderr:
            last = line.strip() or last
            progress(f"{name} {line.rstrip()}")
        status = process.wait()
    finally:
        deadline.cancel()
        process.kill()  # whatever ends this command ends them too
    if out.is_file():
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found
    late = "at the end of --minutes" if time.monotonic() >= until else f"with status {status}"
    error = f"its process ended {late}: {last}"
    return {"triton": path.name if path else "installed", "arch": arch, "tiles": [], "cases": [], "errors": [error]}


def render(document: dict[str, Any]) -> str:
    """A line for each run, what was replaced, the errors and the verdict."""
    device = document["device"]
    lines = [f"SM120's code on {device['name']}, planned for {', '.join(document['planned_for'])} SMs"]
    lines += [f"  {'Triton':<9} {'target':<8} {'tiles':>5} {'run':>4} {'cases':>5} {'bf16':>8} {'mxfp8':>8}"]
    for r in document["runs"]:
        worst = {m: max((c["error"] for c in r["cases"] if c["mode"] == m), default=None) for m in ("bf16", "mxfp8")}
        shown = (f"{e:8.1e}" if e is not None else " " * 8 for e in worst.values())
        good = sum(t["ok"] for t in r["tiles"])
        lines.append(
            f"  {r['triton']:<9} {r['arch']:<8} {len(r['tiles']):>5} {good:>4} {len(r['cases']):>5} {' '.join(shown)}"
        )
    replaced: Counter[str] = Counter()
    for r in document["runs"]:
        for tile in r["tiles"]:
            replaced.update(tile["replaced"])
    lines.append("Replaced: " + ", ".join(f"{n} {what}" for what, n in replaced.items() if what != RETARGETED))
    lines += [f"ERROR {e}" for e in document["errors"]]
    lines.append(
        "SM120's code is WRONG here; please report this output."
        if document["errors"]
        else "SM120's code gives the right numbers on this GPU, but for the instructions replaced, which it lacks."
    )
    return "\n".join(lines)
