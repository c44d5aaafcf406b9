#!/usr/bin/env python3
"""compute-sanitizer over one call for each tile, of SM120's code and of SM90's own. Needs an SM90.

    sanitize.py [--tools memcheck racecheck synccheck initcheck] [--codes sm_120a sm_121a own] [--out FILE]

Each code compiles once; then every tool runs the same calls in a process of its own, some at the same time. Counted are
findings in the kernel package's kernels: torch's own copies, which initcheck reports while weights are prepared, are
named and do not count. Exit status 1 when something was found, or a process did not run to its end in time.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.reports.commit import commit

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
CODES = ("sm_120a", "sm_121a", "own")
CALLS = Path(__file__).with_name("sanitize_calls.py")
ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "kernels" / "sm120"
FINISHED = "calls ran for"  # what the calls print last
# A finding begins with a line of its own, and names its kernel there or in one of the next lines.
_KINDS = "Invalid|Uninitialized|Race|Barrier|Divergent|Program hit|Potential|Warp|Misaligned|Malloc|Host API|Address"
_FINDING = re.compile(rf"^========= (?:Error: |Warning: )?((?:{_KINDS})\b.*)$")
_KERNEL = re.compile(r"\b(?:at|in|kernel) (?:void )?([A-Za-z_][\w:]*)")
_PLACE = re.compile(r" in (?:\S*/)?(\w+\.py):(\d+)")
_SUMMARY = re.compile(r"^========= (?:ERROR|RACECHECK) SUMMARY: (\d+)")


# Reads that a tool rightly reports and that are meant: (tool, text of the source line) -> why.
EXPLAINED = {
    ("initcheck", "tl.load(entry"): "a program without a group reads its entry of the table, which nobody has written, "
    "beside the number of groups, not after it; the values are dropped",
}


def explanation(tool: str | None, line: str) -> str | None:
    """Why a finding at the place that a line names is none."""
    place = _PLACE.search(line)
    file = next(SOURCES.rglob(place[1]), None) if place else None
    if not place or not file:
        return None
    source = file.read_text(encoding="utf-8").splitlines()[int(place[2]) - 1]
    return next((why for (t, words), why in EXPLAINED.items() if t == tool and words in source), None)


def findings(text: str, ours: set[str], tool: str | None = None) -> tuple[collections.Counter[str], ...]:
    """(in our kernels, elsewhere, explained): how often what was found, under `kernel: first line` or the reason."""
    mine: collections.Counter[str] = collections.Counter()
    others: collections.Counter[str] = collections.Counter()
    explained: collections.Counter[str] = collections.Counter()
    pending = ""
    for line in [*text.splitlines(), "========= Invalid end"]:
        if first := _FINDING.match(line):
            if pending:  # it named no kernel, and may be ours
                mine[f"unnamed: {pending}"] += 1
            pending = first[1].strip()
        elif not line.startswith("========="):
            continue
        if pending and (kernel := _KERNEL.search(line)):
            why = explanation(tool, line) if kernel[1] in ours else None
            found = explained if why else mine if kernel[1] in ours else others
            found[why or f"{kernel[1]}: {_KERNEL.split(pending)[0].strip()}"] += 1
            pending = ""
    return mine, others, explained


def summary(text: str) -> int | None:
    """Findings by the tool's own count; None when it wrote none."""
    found = [int(m[1]) for line in text.splitlines() if (m := _SUMMARY.match(line))]
    return found[-1] if found else None


def output(command: list[str], env: dict[str, str], until: float) -> tuple[int, str]:
    """Status and output of a process, which is killed at `until` (monotonic seconds) with all that it started."""
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    late = threading.Timer(max(0.0, until - time.monotonic()), os.killpg, (process.pid, signal.SIGKILL))
    late.start()
    text, _ = process.communicate()
    late.cancel()
    return process.returncode, text


def calls(code: str, cache: str, tool: str | None, sanitizer: str, until: float) -> dict[str, Any]:
    """The calls under a tool; without one they only compile."""
    command = [sys.executable, str(CALLS), "--code", code]
    command = [sanitizer, "--tool", tool, "--print-limit", "100000", *command] if tool else [*command, "--compile"]
    paths = [str(ROOT / "overlay"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"TRITON_CACHE_DIR": f"{cache}/{code}", "PYTHONPATH": os.pathsep.join(paths)}
    env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # so that each tensor's end is the end of its memory
    status, text = output(command, env, until)
    names = re.search(r"^kernels: (.*)$", text, re.M)
    mine, others, explained = findings(text, set(names[1].split()) if names else set(), tool)
    row: dict[str, Any] = {"code": code, "tool": tool, "finished": FINISHED in text, "status": status}
    row |= {"found": dict(mine), "elsewhere": dict(others), "explained": dict(explained)}
    row |= {"counted_by_tool": summary(text)}
    row["kernels"] = sorted(set(names[1].split())) if names else []
    silent = tool is not None and row["counted_by_tool"] is None
    uncounted = bool(row["counted_by_tool"]) and not (mine or others or explained)
    row["ok"] = row["finished"] and not mine and not silent and not uncounted
    return row | ({} if row["ok"] else {"output": text[-4000:]})


def told(row: dict[str, Any]) -> str:
    """A row as a line; of a red one the output too."""
    found = "; ".join(f"{n} x {what}" for what, n in row["found"].items()) or "nothing"
    counts = {what: sum(row[what].values()) for what in ("elsewhere", "explained")}
    more = "".join(f"; {what} {n}" for what, n in counts.items() if n)
    line = f"{'ok ' if row['ok'] else 'RED'} {row['code']:<8} {row['tool'] or 'compiled':<10} {found}{more}"
    return line if row["ok"] else f"{line}\n{row['output']}"


def about() -> dict[str, Any]:
    """What a receipt says beside its rows."""
    import torch
    import triton

    versions = {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    return {
        "schema": 1,
        "kind": "sanitizer",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "versions": versions,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--codes", nargs="+", choices=CODES, default=CODES)
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    parser.add_argument("--sanitizer", default=found, help="its program (%(default)s)")
    parser.add_argument("--out", type=Path, help="a receipt as JSON")
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="after which what still runs is ended (%(default)s)"
    )
    parser.add_argument("--at-once", type=int, default=6, help="processes on the GPU at the same time (%(default)s)")
    a = parser.parse_args()
    until = time.monotonic() + 60 * a.minutes
    rows: list[dict[str, Any]] = []
    head = about() if a.out else {}

    def keep(row: dict[str, Any]) -> None:
        """Say it and write it at once: what ends this process later takes no finished row along."""
        rows.append(row)
        print(told(row), flush=True)
        if a.out:
            a.out.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(a.at_once) as pool:
        for row in pool.map(lambda code: calls(code, cache, None, a.sanitizer, until), a.codes):
            keep(row)
        jobs = [(code, tool) for tool in a.tools for code in a.codes] if all(r["ok"] for r in rows) else []
        for done in as_completed([pool.submit(calls, code, cache, tool, a.sanitizer, until) for code, tool in jobs]):
            keep(done.result())
    return 0 if all(r["ok"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
