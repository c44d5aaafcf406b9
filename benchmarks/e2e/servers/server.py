"""A server process: started in a process group of its own, watched, and stopped as that group and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.e2e.servers import gpus
from benchmarks.e2e.servers.launches import Launch

# Compiled kernels of SGLang and its libraries, all under one directory that can be kept.
_CACHES = {
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "TILELANG_CACHE_DIR": "tilelang",
    "SGLANG_DG_CACHE_DIR": "deep_gemm",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
}
# Compile what is used, when it is used; /health answers without generating; no attempt to reach a hub.
_SETTINGS = {
    "SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0",
    "SGLANG_DSV4_MHC_PREWARM": "0",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS": "1",  # 60 by default when a scheduler dies and another lives
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
}


def environment(launch: Launch, caches: Path) -> dict[str, str]:
    """A server's environment: this process's, without settings of SGLang or the overlay, and with those above.

    Raises:
        ValueError: it wants more GPUs than this process may see.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_")}
    own = dict(launch.env)
    if "PYTHONPATH" in own and "PYTHONPATH" in kept:
        own["PYTHONPATH"] += os.pathsep + kept["PYTHONPATH"]
    visible = {gpus.VARIABLE: gpus.of(launch, os.environ.get(gpus.VARIABLE))}
    return kept | {name: str(caches / part) for name, part in _CACHES.items()} | _SETTINGS | visible | own


def group_of(leader: int) -> list[tuple[int, str]]:
    """(pid, command line or title) of the processes of a group that have not ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
            title = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it has just ended
            continue
        if int(group) == leader and state not in "ZX":
            found.append((int(process.name), title[:100]))
    return sorted(found)


class Server:
    """One launch of SGLang.

    Args:
        launch: which.
        model: checkpoint directory.
        port: where it listens.
        out: directory of its log.
        caches: where compiled kernels are kept.
        more: further flags.
        command: what stands for the interpreter and SGLang's module (tests).
    """

    def __init__(
        self, launch: Launch, model: Path, port: int, out: Path, caches: Path, more: tuple[str, ...] = (),
        command: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.launch, self.url = launch, f"http://127.0.0.1:{port}"
        self.log = out / f"{launch.name}{'-dummy' if more else ''}.log"
        arguments = launch.arguments(str(model), port, *more)
        self.command = [*command, *arguments[2:]] if command else [sys.executable, *arguments]
        self.started = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=environment(launch, caches), start_new_session=True,
            )  # fmt: skip

    @property
    def age(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def is_alive(self) -> bool:
        """Whether the launched process still runs."""
        return self.process.poll() is None

    def is_ready(self) -> bool:
        """Whether /health answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def wait_ready(self, until: float) -> float | None:
        """Seconds from the start until it is ready; None when it ended, or `until` (monotonic time) came first."""
        while self.is_alive() and time.monotonic() < until:
            if self.is_ready():
                return round(self.age, 1)
            time.sleep(0.25)
        return None

    def wait_end(self, until: float) -> bool:
        """Whether the process ended by itself before `until`."""
        while self.is_alive() and time.monotonic() < until:
            time.sleep(0.25)
        return not self.is_alive()

    def stop(self, patience: float = 5.0) -> None:
        """End the group: ask, wait, then kill what is left."""
        for sign, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 3.0)):
            try:
                os.killpg(self.process.pid, sign)
            except ProcessLookupError:
                break
            end = time.monotonic() + wait
            while time.monotonic() < end and _group_lives(self.process.pid):
                self.process.poll()  # reaps the leader, so that it does not count as alive
                time.sleep(0.1)
        self.process.poll()


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
