"""Before and after: SGLang without and with the overlay, side by side, asked the same things.

    python benchmarks/e2e/run.py --out DIR [--groups NAME ...] [--models DIR] [--caches DIR] [--limit SECONDS]

Needs a GPU (the groups `load`, `kinds` and `two-gpus` two), and SGLang and sglang-sm120 in the interpreter's
environment. Writes the checkpoints that are not there yet (`scripts/make_checkpoint.py`), starts the servers of
`launches.py` at the same time, asks, compares, loads, stops them and writes DIR/result.json beside one log per server;
`receipt.py` makes a receipt of that. Ends within the limit, and ends only what it started; what the time did not
suffice for is named in the result. Exit status 1 when a server did otherwise than `launches.py` expects.

Two runs side by side need GPUs (CUDA_VISIBLE_DEVICES), ports and --out of their own; --models and --caches may be the
same.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asks
import checkpoints
import faults
import gpus
import phases
import ports
from launches import DUMMY, GROUPS, LAUNCHES, Launch
from results import as_expected, comparisons, gpu, versions
from server import Server, group_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what benchmarks share

from checkout import commit

CLOSING = 12.0  # seconds kept back for stopping and writing
ENOUGH_TO_RETRY = 130.0
PATIENCE = 45.0  # for the processes of a server that has ended
SPARE = 30.0  # before the phases begin
TO_START = 0.4  # of all time, at least, for starting and asking
GRACE = 0.25  # of the time for the phases, by which a server that they need may be late


class Run:
    """One run: its servers, its results so far and its deadline.

    Args:
        out, models, caches: directories.
        limit: seconds from `begun` until everything must have ended.
        command: what stands for the server command (tests).
        shape: arguments of `make_checkpoint.py` beside kind and seed.
        port: of the first server.
        share: of the seconds of each serving benchmark.
    """

    def __init__(
        self, out: Path, models: Path, caches: Path, limit: float, command: list[str] | None = None,
        shape: tuple[str, ...] = (), port: int = 21000, share: float = 1.0,
    ) -> None:  # fmt: skip
        self.out, self.models, self.caches, self.command = out, models, caches, command
        self.shape, self.port, self.share = shape, port, share
        self.asked = True
        self.begun = time.monotonic()
        self.until = self.begun + limit - CLOSING
        self.start_by = self.until
        self.servers: dict[str, Server] = {}
        self.left_out: dict[str, list[str]] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """A line with the time since the start."""
        print(f"[{time.monotonic() - self.begun:6.1f} s] {text}", flush=True)

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def model(self, kind: str, seed: int = 0) -> Path:
        """Directory of a checkpoint."""
        return checkpoints.path(self.models, kind, seed)

    @property
    def full(self) -> Path:
        """A directory without room."""
        return self.out / "full"

    def leave_out(self, name: str, what: str) -> None:
        """Note what a server could not be tried with, and why."""
        with self._lock:
            parts = self.left_out.setdefault(name, [])
            if what not in parts:
                parts.append(what)

    def keep_back(self, seconds: float) -> None:
        """Servers must be up and asked when only this much time is left, or a share of all time has passed."""
        if seconds:
            self.start_by = max(self.until - seconds - SPARE, self.begun + TO_START * (self.until - self.begun))

    def up_by(self, launch: Launch, needed: bool) -> float:
        """When a server must be ready; the ones that a phase needs may be a little late."""
        grace = GRACE * (self.until - self.start_by) if needed else 0.0
        return self.start_by + grace if launch.serves else self.until

    def write_checkpoint(self, kind: str, seed: int = 0) -> None:
        """Write a checkpoint unless it is there."""
        if checkpoints.write(self.models, kind, seed, self.shape):
            self.say(f"wrote {self.model(kind, seed).name}")

    def start(self, launch: Launch, number: int, more: tuple[str, ...] = ()) -> Server:
        """Start a server and enter it into the results."""
        if "FULL" in launch.env.values():
            env = {k: str(self.full) if v == "FULL" else v for k, v in launch.env.items()}
            launch = dataclasses.replace(launch, env=env)
        server = Server(
            launch,
            self.model(launch.kind),
            ports.port(self.port, number),
            self.out,
            self.caches,
            more,
            self.command,
        )
        with self._lock:
            self.servers[launch.name] = server
            self.results[launch.name] = {
                "says": launch.says,
                "kind": launch.kind,
                "env": launch.env,
                "gpus": gpus.of(launch, os.environ.get(gpus.VARIABLE)),
                "command": server.command,
                "weights": "dummy" if more else "checkpoint",
                "expected": "ready" if launch.serves else "ended",
                "log": server.log.name,
            }
        return server

    def watch(self, launch: Launch, number: int, needed: bool) -> None:
        """Start a server, wait for it, ask. One that ends although it should serve gets dummy weights, once.

        A server that is late for the phases is stopped, so that it does not disturb them.
        """
        if "FULL" in launch.env.values() and not faults.full_disk(self.full):
            about = {"says": launch.says, "kind": launch.kind, "env": launch.env, "command": [], "log": ""}
            about |= {"weights": "checkpoint", "expected": "ended", "outcome": "not run: this user may not mount"}
            self.results[launch.name] = about
            return
        until = self.up_by(launch, needed)
        server = self.start(launch, number)
        ready = server.wait_ready(until)
        ended = ready is None and not server.is_alive()
        if ended and launch.serves and until - time.monotonic() > ENOUGH_TO_RETRY:
            self.results[f"{launch.name} (checkpoint)"] = self.results[launch.name] | self.outcome(server, None)
            self.say(f"{launch.name}: ended with status {server.process.returncode}; again with dummy weights")
            server.stop()
            server = self.start(launch, number, DUMMY)
            ready = server.wait_ready(until)
        result = self.results[launch.name]
        result |= self.outcome(server, ready)
        if not launch.serves and not server.is_alive():
            result |= self.ending(launch, server)
        self.say(f"{launch.name}: {result['outcome']} after {result['seconds']} s")
        if ready is not None and self.asked:
            self.ask(launch, server)
        elif launch.serves and server.is_alive() and ready is None:
            self.leave_out(launch.name, "everything: it was stopped, so that it does not disturb the others")
            server.stop()
            result["left"] = [title for _, title in group_of(server.process.pid)]

    def ask(self, launch: Launch, server: Server) -> None:
        """The questions, as far as there is time before the phases."""
        result = self.results[launch.name]
        result["answers"] = asks.exchange(server.url, self.start_by)
        missing = [part for part in asks.PARTS if part not in result["answers"]]
        if launch.text and time.monotonic() < self.start_by - 5:
            result["verify"] = self.verify(server.url)
        elif launch.text:
            missing.append("verify")
        if missing:
            self.leave_out(launch.name, f"questions ({', '.join(missing)}): it was ready too late")
        result["outcome_after_requests"] = "serves" if server.is_alive() else "ended"
        self.say(f"{launch.name}: asked; {result['outcome_after_requests']}")

    def verify(self, url: str) -> dict[str, Any]:
        """What `sglang-sm120 verify` says of a server."""
        command = [sys.executable, "-m", "sglang_sm120.cli", "verify", "--url", url, "--json"]
        timeout = self.start_by - time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, timeout), check=False)
        except subprocess.TimeoutExpired:
            return {"status": "no answer in time"}
        found = json.loads(done.stdout) if done.stdout.startswith("{") else {"errors": [done.stderr[-400:]]}
        return {"status": done.returncode, "document": found}

    def outcome(self, server: Server, ready: float | None) -> dict[str, Any]:
        """What became of a start."""
        if ready is not None:
            return {"outcome": "ready", "seconds": ready}
        ended = not server.is_alive()
        return {
            "outcome": "ended" if ended else "not ready in time",
            "status": server.process.returncode,
            "seconds": round(server.age, 1),
        }

    def ending(self, launch: Launch, server: Server) -> dict[str, Any]:
        """Whether a server that was to end said what it should have, and left nothing behind."""
        until = min(self.until, time.monotonic() + PATIENCE)
        while group_of(server.process.pid) and time.monotonic() < until:
            time.sleep(0.5)
        text = server.log.read_text(errors="replace")
        said = next((line for line in text.splitlines() if re.search(launch.ends_with, line)), None)
        return {"ends_with": launch.ends_with, "said": said, "left": [t for _, t in group_of(server.process.pid)]}

    def serving(self) -> list[str]:
        """Names of the servers that are up."""
        return [n for n, s in self.servers.items() if self.results[n].get("outcome") == "ready" and s.is_alive()]

    def stop(self) -> None:
        """End every server."""
        with ThreadPoolExecutor(len(self.servers) or 1) as pool:
            list(pool.map(Server.stop, self.servers.values()))
        faults.release(self.full)


def carry_out(run: Run, launches: list[Launch], rounds: int, updates: bool) -> None:
    """All of it. The phases do not wait for servers that are to end. Whatever happens, all are stopped."""
    kinds = {launch.kind for launch in launches}
    damaged = {kind for kind in kinds if kind.rpartition("-")[2] in faults.DAMAGES}
    good = sorted(kinds - damaged | {kind.rpartition("-")[0] for kind in damaged})
    updated = {launch.kind for launch in launches if launch.updated and updates}
    needed = {launch: phases.has_any(launch, updates) for launch in launches}
    run.keep_back(phases.seconds(launches, run.share, rounds, updates))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run.write_checkpoint, good))
        list(pool.map(run.write_checkpoint, sorted(damaged)))
        later = [pool.submit(run.write_checkpoint, kind, phases.OTHER_SEED) for kind in updated]
        try:
            watchers = {
                la: threading.Thread(target=run.watch, args=(la, n, needed[la])) for n, la in enumerate(launches)
            }
            for watcher in watchers.values():
                watcher.start()
            for launch, watcher in watchers.items():
                if launch.serves:
                    watcher.join(max(0.0, run.up_by(launch, needed[launch]) + PATIENCE - time.monotonic()))
            phases.loads(run, launches, rounds)
            phases.benches(run, launches, updates)
            for job in later:
                job.result(timeout=max(1.0, run.left))
            if updates:
                phases.updates(run, launches)
            phases.kills(run, launches)
            for watcher in watchers.values():
                watcher.join()
        finally:
            run.stop()


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
        ports.check(a.port, len(launches))
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
        "prompts": asks.PROMPTS,
    }
    try:
        carry_out(run, launches, a.rounds, not a.no_updates)
    finally:
        order = {launch.name: n for n, launch in enumerate(launches)}
        run.results = dict(sorted(run.results.items(), key=lambda item: order[item[0].split(" ")[0]]))
        document |= {"servers": run.results, "comparisons": comparisons(run.results), "left_out": run.left_out}
        document["seconds"] = round(time.monotonic() - run.begun, 1)
        (a.out / "result.json").write_text(json.dumps(document, indent=1) + "\n")
    wrong = [n for n, r in run.results.items() if not as_expected(r)]
    for name, parts in run.left_out.items():
        run.say(f"{name}: left out: {'; '.join(parts)}")
    run.say("as expected" if not wrong else f"otherwise than expected: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
