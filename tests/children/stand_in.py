"""Stands in for python3, sglang-sm120 and pip while the commands of the documents and recipes run.

Called as PROGRAM ARGUMENTS... by small scripts on PATH. Planning and launching take SGLang's import each, so they are
noted and resolved together afterwards; everything else is really done. Runs without site-packages, for speed.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

NOTES = Path(os.environ["STAND_IN_NOTES"])
PIP = os.environ["STAND_IN_PIP"]  # the python of a clean environment
REAL = os.environ["STAND_IN_PYTHON"]
PRESENT = ("import sglang_sm120", "import sglang_router")  # what recipes ask before they start anything


def note(kind, arguments):
    settings = {k: v for k, v in os.environ.items() if k.startswith(("SGLANG_", "NCCL_", "GLOO_"))}
    with NOTES.open("a", encoding="utf-8") as out:
        out.write(json.dumps({"kind": kind, "arguments": arguments, "environment": settings}) + "\n")


def python(arguments):
    modules = {"sglang.launch_server": "launch", "sglang_router.launch_router": "router"}
    if arguments[0] == "-c" and arguments[1] in PRESENT:
        return int(arguments[1].split()[1] == os.environ.get("STAND_IN_MISSING"))
    if arguments[0] == "-m" and arguments[1] in modules:
        note(modules[arguments[1]], arguments[2:])
        seconds, status = os.environ.get(f"STAND_IN_{modules[arguments[1]].upper()}", "0 0").split()
        time.sleep(float(seconds))
        return int(status)
    if arguments[:2] == ["-m", "sglang_sm120.cli"]:
        return command(arguments[2:])
    return subprocess.call([REAL, *arguments])


def command(arguments):
    if arguments[0] == "plan":
        note("plan", arguments[1:])
        return 0
    measures = arguments[0] == "tune" and "--check" not in arguments
    if (
        arguments[0] in ("selftest", "verify", "bench", "report") or measures
    ):  # half a minute, a server, a GPU: they have their own tests
        parse = "import sys; from sglang_sm120 import cli; cli.parser().parse_args(sys.argv[1:])"
        note(arguments[0], arguments[1:])
        return subprocess.call([REAL, "-c", parse, *arguments])
    note(arguments[0], arguments[1:])
    return subprocess.call([REAL, "-m", "sglang_sm120.cli", *arguments])


def main():
    program, arguments = sys.argv[1], sys.argv[2:]
    if program == "python3":
        return python(arguments)
    if program == "pip":
        note("pip", arguments)
        return subprocess.call([PIP, "-m", "pip", *arguments])
    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())
