"""One run of servers: started, watched, asked and stopped before a deadline; what came of each."""

from __future__ import annotations

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

from benchmarks.e2e import checkpoints, client, determinism, faults
from benchmarks.e2e.servers import gpus, ports
from benchmarks.e2e.servers.launches import DUMMY, Launch
from benchmarks.e2e.servers.server import Server, group_of

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
        shape: arguments of `checkpoints/make.py` beside kind and seed.
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
            self.model(launch.kind, launch.seed),
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
        result["answers"] = client.exchange(server.url, self.start_by)
        missing = [part for part in client.PARTS if part not in result["answers"]]
        if launch.text and time.monotonic() < self.start_by - 5:
            result["verify"] = self.verify(server.url)
        elif launch.text:
            missing.append("verify")
        if launch.texts_of:
            result["texts_of"] = launch.texts_of
            result["texts"] = determinism.ask(server.url, self.start_by)
            missing += [part for part in determinism.PARTS if part not in result["texts"]]
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
