"""Before and after on one GPU: SGLang without and with the overlay, side by side, asked the same things.

    python benchmarks/e2e/run.py --out DIR [--models DIR] [--caches DIR] [--limit 420] [--only NAME ...]

Needs a GPU, and SGLang and sglang-sm120 in the interpreter's environment. Writes the checkpoints that are not there yet
(`scripts/make_checkpoint.py`), starts the servers of `launches.py` at the same time, asks, compares, stops them and
writes DIR/result.json beside one log per server; `receipt.py` makes a receipt of that. Ends within the limit, and ends
only what it started. Exit status 1 when a server did otherwise than `launches.py` expects.
"""

from __future__ import annotations

import argparse
import importlib.metadata as metadata
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asks
from launches import DUMMY, LAUNCHES, Launch
from server import Server

ROOT = Path(__file__).resolve().parents[2]
PORTS_APART = 2000  # SGLang takes further ports above each
CLOSING = 12.0  # seconds kept back for stopping and writing
ENOUGH_TO_RETRY = 130.0
LOADS = ((1, 8), (4, 24), (8, 48))  # requests at once, and in all
OTHER_SEED = 1  # of the weights that a running server is updated to


class Run:
    """One run: its servers, its results so far and its deadline.

    Args:
        out, models, caches: directories.
        limit: seconds from `begun` until everything must have ended.
        command: what stands for the server command (tests).
        shape: arguments of `make_checkpoint.py` beside kind and seed.
        port: of the first server.
    """

    def __init__(
        self, out: Path, models: Path, caches: Path, limit: float, command: list[str] | None = None,
        shape: tuple[str, ...] = (), port: int = 21000,
    ) -> None:  # fmt: skip
        self.out, self.models, self.caches, self.command = out, models, caches, command
        self.shape, self.port = shape, port
        self.begun = time.monotonic()
        self.until = self.begun + limit - CLOSING
        self.servers: dict[str, Server] = {}
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
        return self.models / f"{kind}-{seed}"

    def write_checkpoint(self, kind: str, seed: int = 0) -> None:
        """Write a checkpoint unless it is there."""
        directory = self.model(kind, seed)
        if (directory / "config.json").exists():  # written last
            return
        script = ROOT / "scripts" / "make_checkpoint.py"
        arguments = [str(directory), "--kind", kind, "--seed", str(seed), *self.shape]
        subprocess.run([sys.executable, str(script), *arguments], check=True, stdout=subprocess.DEVNULL)
        self.say(f"wrote {directory.name}")

    def start(self, launch: Launch, number: int, more: tuple[str, ...] = ()) -> Server:
        """Start a server and enter it into the results."""
        server = Server(
            launch,
            self.model(launch.kind),
            self.port + PORTS_APART * number,
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
                "command": server.command,
                "weights": "dummy" if more else "checkpoint",
                "expected": "ready" if launch.serves else "ended",
                "log": server.log.name,
            }
        return server

    def watch(self, launch: Launch, number: int) -> None:
        """Start a server, wait for it, ask. One that ends although it should serve gets dummy weights, once."""
        server = self.start(launch, number)
        ready = server.wait_ready(self.until)
        if ready is None and launch.serves and not server.is_alive() and self.left > ENOUGH_TO_RETRY:
            self.results[f"{launch.name} (checkpoint)"] = self.results[launch.name] | self.outcome(server, None)
            self.say(f"{launch.name}: ended with status {server.process.returncode}; again with dummy weights")
            server.stop()
            server = self.start(launch, number, DUMMY)
            ready = server.wait_ready(self.until)
        result = self.results[launch.name]
        result |= self.outcome(server, ready)
        self.say(f"{launch.name}: {result['outcome']} after {result['seconds']} s")
        if ready is not None:
            result["answers"] = asks.exchange(server.url, self.until)
            if launch.text:
                result["verify"] = self.verify(server.url)
            result["outcome_after_requests"] = "serves" if server.is_alive() else "ended"
            self.say(f"{launch.name}: asked; {result['outcome_after_requests']}")

    def verify(self, url: str) -> dict[str, Any]:
        """What `sglang-sm120 verify` says of a server."""
        command = [sys.executable, "-m", "sglang_sm120.cli", "verify", "--url", url, "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, self.left), check=False)
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

    def serving(self) -> list[str]:
        """Names of the servers that are up."""
        return [n for n, s in self.servers.items() if self.results[n].get("outcome") == "ready" and s.is_alive()]

    def loads(self, names: list[str], rounds: int) -> None:
        """The same short loads on each server in turn, the others idle; unmeasured ones compile what is missing."""
        for number in range(rounds + 1):
            for at_once, count in LOADS:
                for name in names:
                    if self.left < 20:
                        return
                    url, timeout = self.servers[name].url, min(60, self.left)
                    found = asks.load(url, at_once, count if number else 2 * at_once, timeout=timeout)
                    if number:
                        self.results[name].setdefault("loads", []).append(found | {"round": number})
                        self.say(f"{name}: {at_once} at once, {found['tokens_per_s']} tokens/s")

    def updates(self) -> None:
        """Other weights into each running server, then the first ones again; the answers after each."""
        for name in reversed(self.serving()):
            kind, url = self.results[name]["kind"], self.servers[name].url
            steps = self.results[name]["updates"] = []
            for seed in (OTHER_SEED, 0):
                if self.left < 20 or not (self.model(kind, seed) / "config.json").exists():
                    return
                step = asks.update(url, str(self.model(kind, seed)), timeout=min(60, self.left))
                steps.append(step | {"seed": seed})
                self.say(f"{name}: update to seed {seed}: {step['success']}")
                if not step["success"]:
                    break
                step["alone"] = [asks.generate(url, ids, timeout=min(30, self.left)) for ids in asks.PROMPTS[:4]]
                steps[-1] = step | {"seed": seed}

    def stop(self) -> None:
        """End every server."""
        with ThreadPoolExecutor(len(self.servers) or 1) as pool:
            list(pool.map(Server.stop, self.servers.values()))


def compare(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Greedy tokens of two servers on the same prompts, and their logprobs as far as the tokens agree."""
    rows, differences = [], []
    for a, b in zip(one["answers"].get("logprobs", []), other["answers"].get("logprobs", []), strict=False):
        if "error" in a or "error" in b:
            continue
        same = next((i for i, (x, y) in enumerate(zip(a["ids"], b["ids"], strict=False)) if x != y), len(a["ids"]))
        rows.append(same)
        differences += [abs(x - y) for x, y in zip(a["logprobs"][:same], b["logprobs"][:same], strict=True)]
    alone = [
        a.get("ids") == b.get("ids") and "ids" in a
        for a, b in zip(one["answers"].get("alone", []), other["answers"].get("alone", []), strict=False)
    ]
    return {
        "prompts": len(alone),
        "identical": sum(alone),
        "tokens_until_the_first_difference": rows,
        "largest_logprob_difference": max(differences, default=None),
    }


def versions() -> dict[str, str | None]:
    """Of what runs."""
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for name in ("sglang", "sglang-sm120", "torch", "triton", "flashinfer-python", "sglang-kernel", "tilelang"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def gpu() -> str:
    """Name, memory and driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "none"


def carry_out(run: Run, launches: list[Launch], rounds: int, updates: bool) -> None:
    """All of it. The loads do not wait for servers that are to end. Whatever happens, all are stopped."""
    kinds = sorted({launch.kind for launch in launches})
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run.write_checkpoint, kinds))
        later = [pool.submit(run.write_checkpoint, kind, OTHER_SEED) for kind in kinds if updates]
        try:
            watchers = {la: threading.Thread(target=run.watch, args=(la, n)) for n, la in enumerate(launches)}
            for watcher in watchers.values():
                watcher.start()
            for launch, watcher in watchers.items():
                if launch.serves:
                    watcher.join()
            loaded = {launch.name for launch in launches if launch.loaded}
            run.loads([name for name in run.serving() if name in loaded], rounds)
            for job in later:
                job.result(timeout=max(1.0, run.left))
            if updates:
                run.updates()
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
    parser.add_argument("--only", nargs="+", choices=[la.name for la in LAUNCHES], metavar="NAME", help="servers")
    parser.add_argument("--rounds", type=int, default=1, help="measured loads of each size")
    parser.add_argument("--port", type=int, default=21000, help=f"of the first server; the others {PORTS_APART} apart")
    parser.add_argument("--no-updates", action="store_true", help="leave runtime weight updates out")
    parser.add_argument("--commit", default=os.environ.get("COMMIT"), help="default: git's")
    parser.add_argument("--command", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help="small checkpoints (tests)")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    shape = ("--small",) if a.small else ()
    run = Run(a.out, a.models or a.out / "models", a.caches or a.out / "caches", a.limit, a.command, shape, a.port)
    launches = [la for la in LAUNCHES if la.name in (a.only or [main.name for main in LAUNCHES if main.main])]
    document: dict[str, Any] = {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": a.commit or commit(),
    }
    document |= {"gpu": gpu(), "versions": versions(), "cores": os.cpu_count(), "prompts": asks.PROMPTS}
    try:
        carry_out(run, launches, a.rounds, not a.no_updates)
    finally:
        order = {launch.name: n for n, launch in enumerate(launches)}
        run.results = dict(sorted(run.results.items(), key=lambda item: order[item[0].split(" ")[0]]))
        document |= {"servers": run.results, "comparisons": comparisons(run.results)}
        document["seconds"] = round(time.monotonic() - run.begun, 1)
        (a.out / "result.json").write_text(json.dumps(document, indent=1) + "\n")
    wrong = [n for n, r in run.results.items() if r.get("outcome") not in (r["expected"], None)]
    run.say("as expected" if not wrong else f"otherwise than expected: {', '.join(wrong)}")
    return 1 if wrong else 0


def comparisons(results: dict[str, Any]) -> dict[str, Any]:
    """Every pair of servers that answered."""
    names = [n for n, r in results.items() if "answers" in r]
    return {f"{a} / {b}": compare(results[a], results[b]) for i, a in enumerate(names) for b in names[i + 1 :]}


def commit() -> str | None:
    """The checkout's commit."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
