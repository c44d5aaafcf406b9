"""SGLang's own serving benchmark at one load after another, in one process: its imports take 10 s.

Reads a line of JSON with the benchmark's arguments and its output file, and answers with what the file says. Whatever
the benchmark prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from typing import Any

MODULE = "sglang.bench_serving"


def measure(arguments: list[str], file: str) -> dict[str, Any]:
    """Run the benchmark as `python -m` does; the last line of its file."""
    sys.argv = [MODULE, *arguments, "--output-file", file]
    try:
        runpy.run_module(MODULE, run_name="__main__")
    except SystemExit as error:
        if error.code:
            return {"failed": f"{MODULE} ended with status {error.code}"}
    except Exception as error:  # noqa: BLE001 - whatever it ends in, the load is named and the next one may go well
        return {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    with open(file, encoding="utf-8") as lines:
        return {"done": json.loads(lines.read().splitlines()[-1])}


def main() -> int:
    """Serve until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command that started this one decides
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps({"at": question["name"]}), file=out, flush=True)
        print(json.dumps(measure(question["arguments"], question["file"])), file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
