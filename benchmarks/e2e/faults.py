"""What goes wrong on purpose: damaged checkpoints, no room for compiled kernels, a killed scheduler."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.e2e import client
from benchmarks.e2e.servers.server import Server, group_of

DAMAGES = ("corrupt", "missing")
DRAFT_EXPERT = b"mtp.0.ffn.experts.1.w2.weight"


def damage(good: Path, bad: Path, how: str) -> None:
    """A copy of a checkpoint with its last shard cut short (`corrupt`) or one draft expert's tensor renamed."""
    bad.mkdir(parents=True)
    shards = sorted(good.glob("*.safetensors"))
    holder = next((s for s in shards if DRAFT_EXPERT in _header(s)), shards[-1])
    for file in good.iterdir():
        if file == holder:
            shutil.copy(file, bad / file.name)
        else:
            (bad / file.name).symlink_to(file.resolve())
    with (bad / holder.name).open("r+b") as file:
        if how == "corrupt":
            file.truncate(holder.stat().st_size * 2 // 3)
        else:
            header = _header(holder)
            file.seek(8)
            file.write(header.replace(b'"' + DRAFT_EXPERT + b'"', b'"' + DRAFT_EXPERT[:-1] + b'x"'))


def _header(shard: Path) -> bytes:
    with shard.open("rb") as file:
        return file.read(int.from_bytes(file.read(8), "little"))


def full_disk(where: Path) -> bool:
    """Whether `where` now is a file system without room. Needs the right to mount."""
    where.mkdir(parents=True, exist_ok=True)
    if where.is_mount():
        return True
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(where)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def release(where: Path) -> None:
    """Undo `full_disk`."""
    if where.is_mount():
        subprocess.run(["umount", str(where)], capture_output=True, check=False)


def kill_scheduler(server: Server, patience: float = 60.0) -> dict[str, Any]:
    """Kill one scheduler process of a server under load; what became of the rest.

    Returns:
        the killed process's title; the seconds until the server's process ended and its status, or the seconds that it
        was given and None; what the requests in flight got, in all; the processes of its group that were left then.
    """
    schedulers = [(pid, title) for pid, title in group_of(server.process.pid) if "scheduler" in title]
    if not schedulers:
        return {"error": "no scheduler process was found"}
    pid, title = schedulers[-1]
    outcome: dict[str, Any] = {}

    def busy() -> None:
        outcome.update(client.load(server.url, 8, 64, new=256, timeout=patience))

    load = threading.Thread(target=busy)
    load.start()
    time.sleep(2.0)
    begun = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    server.wait_end(begun + patience)
    ended, status = round(time.monotonic() - begun, 1), server.process.poll()
    while group_of(server.process.pid) and time.monotonic() < begun + patience:
        time.sleep(0.5)
    left = [title for _, title in group_of(server.process.pid)]
    load.join()
    return {
        "killed": title, "ended_after_s": ended, "status": status, "left": left,
        "requests_failed": len(outcome.get("errors", [])), "requests_answered": len(outcome.get("seconds", [])),
    }  # fmt: skip
