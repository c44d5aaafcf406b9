"""Before and after: SGLang without and with the overlay, side by side, asked the same things.

    python benchmarks/e2e/run.py --out DIR [--groups NAME ...] [--models DIR] [--caches DIR] [--limit SECONDS]

Needs a GPU (the groups `load`, `kinds` and `two-gpus` two), and SGLang and sglang-sm120 in the interpreter's
environment. Writes the checkpoints that are not there yet (`scripts/checkpoints/make.py`), starts the servers of
`servers/launches.py` at the same time, asks, compares, loads, stops them and writes DIR/result.json beside one log per
server; `receipt.py` makes a receipt of that. Ends within the limit, and ends only what it started; what the time did
not suffice for is named in the result. Exit status 1 when a server did otherwise than `servers/launches.py` expects.

Two runs side by side need GPUs (CUDA_VISIBLE_DEVICES), ports and --out of their own; --models and --caches may be the
same.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "overlay"))  # only the servers need it installed
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.e2e import client, determinism, faults, workloads
from benchmarks.e2e import updates as changing
from benchmarks.e2e.results import as_expected, comparisons, gpu, versions
from benchmarks.e2e.servers import gpus, ports
from benchmarks.e2e.servers.launches import GROUPS, LAUNCHES, Launch
from benchmarks.e2e.session import PATIENCE, Run
from benchmarks.reports.commit import commit


def carry_out(run: Run, launches: list[Launch], rounds: int, updates: bool) -> None:
    """All of it. The phases do not wait for servers that are to end. Whatever happens, all are stopped."""
    kinds = {launch.kind for launch in launches}
    damaged = {kind for kind in kinds if kind.rpartition("-")[2] in faults.DAMAGES}
    good = sorted(kinds - damaged | {kind.rpartition("-")[0] for kind in damaged})
    updated = {launch.kind for launch in launches if launch.updated and updates}
    seeded = sorted({(launch.kind, launch.seed) for launch in launches if launch.seed})
    needed = {launch: workloads.has_any(launch, updates) for launch in launches}
    run.keep_back(workloads.seconds(launches, run.share, rounds, updates))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run.write_checkpoint, good))
        list(pool.map(run.write_checkpoint, sorted(damaged)))
        list(pool.map(run.write_checkpoint, *zip(*seeded, strict=True)) if seeded else [])
        later = [pool.submit(run.write_checkpoint, kind, changing.OTHER_SEED) for kind in updated]
        try:
            watchers = {
                la: threading.Thread(target=run.watch, args=(la, n, needed[la])) for n, la in enumerate(launches)
            }
            for watcher in watchers.values():
                watcher.start()
            for launch, watcher in watchers.items():
                if launch.serves:
                    watcher.join(max(0.0, run.up_by(launch, needed[launch]) + PATIENCE - time.monotonic()))
            workloads.loads(run, launches, rounds)
            workloads.benches(run, launches, updates)
            for job in later:
                job.result(timeout=max(1.0, run.left))
            if updates:
                changing.updates(run, launches)
            workloads.kills(run, launches)
            for watcher in watchers.values():
                watcher.join()
        finally:
            run.stop()


def first(name: str) -> str:
    """The launch that a server of this name was started for: again with dummy weights, or on the other weights."""
    return name.split(" ")[0].removesuffix(changing.TWIN)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", type=Path, help="where checkpoints are and go; default OUT/models")
    parser.add_argument("--caches", type=Path, help="where compiled kernels are kept; default OUT/caches")
    parser.add_argument("--limit", type=float, default=420, help="seconds for everything")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=["main"], help="of servers; default: main")
    parser.add_argument("--only", nargs="+", choices=[la.name for la in LAUNCHES], metavar="NAME", help="servers")
    parser.add_argument("--rounds", type=int, default=1, help="measured loads of each size")
    parser.add_argument("--port", type=int, default=21000, help=f"of the first server; the others {ports.APART} apart")
    parser.add_argument("--no-updates", action="store_true", help="leave runtime weight updates out")
    parser.add_argument("--no-answers", action="store_true", help="loads and faults only")
    parser.add_argument("--commit", default=os.environ.get("COMMIT"), help="default: git's")
    parser.add_argument("--command", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help="small checkpoints, short benchmarks (tests)")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    shape = ("--small",) if a.small else ()
    share = 0.05 if a.small else 1.0
    models, caches = a.models or a.out / "models", a.caches or a.out / "caches"
    run = Run(a.out, models, caches, a.limit, a.command, shape, a.port, share)
    run.asked = not a.no_answers
    launches = [la for la in LAUNCHES if (la.name in a.only if a.only else la.group in a.groups)]
    try:
        used = gpus.used(launches, os.environ.get(gpus.VARIABLE))
        ports.check(a.port, len(launches) + sum(launch.updated for launch in launches))
    except ValueError as error:
        parser.error(str(error))
    document: dict[str, Any] = {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": a.commit or commit(),
    }
    document |= {
        "gpu": gpu(used),
        "gpus": used,
        "groups": sorted({la.group for la in launches}),
        "versions": versions(),
        "cores": os.cpu_count(),
        "prompts": client.PROMPTS,
    }
    try:
        carry_out(run, launches, a.rounds, not a.no_updates)
    finally:
        order = {first(launch.name): n for n, launch in enumerate(launches)}
        run.results = dict(sorted(run.results.items(), key=lambda item: order[first(item[0])]))
        document |= {"servers": run.results, "comparisons": comparisons(run.results), "left_out": run.left_out}
        document["determinism"] = determinism.findings(run.results)
        for line in determinism.lines(document["determinism"]):
            run.say(line)
        document["seconds"] = round(time.monotonic() - run.begun, 1)
        (a.out / "result.json").write_text(json.dumps(document, indent=1) + "\n")
    wrong = [n for n, r in run.results.items() if not as_expected(r)]
    for name, parts in run.left_out.items():
        run.say(f"{name}: left out: {'; '.join(parts)}")
    run.say("as expected" if not wrong else f"otherwise than expected: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
