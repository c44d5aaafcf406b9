"""A process of its own for what may hang, crash or break the GPU's context: asked by lines, ended with its group."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_sm120.commands import interrupts

LAST = ("done", "refused", "failed")  # the words that end an answer
GRACE = 10.0  # seconds for a process that has closed its answer to end
PATIENCE = 0.5  # seconds between looks at the clock
_TAIL = 16384  # bytes of the log that may hold its last words


class EndedError(RuntimeError):
    """The process gave no whole answer.

    Attributes:
        how: `crashed` or `hung`.
        at: what it was busy with.
        why: exit status or signal with its last words, or the time that it had.
    """

    def __init__(self, how: str, at: str, why: str) -> None:
        super().__init__(f"{how} at {at}: {why}")
        self.how, self.at, self.why = how, at, why


class Isolated:
    """A started process in a session of its own, so that it and whatever it starts can be ended together.

    Args:
        command: the program.
        environment: its environment variables.
        log: file that gets its stderr.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log, self.at = log, "start"
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=dict(environment),
                start_new_session=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._unread = b""

    def ask(self, line: str, limit: float) -> Iterator[dict[str, Any]]:
        """Send a line; its answers as they come, the last one with a word of `LAST`.

        Args:
            limit: seconds for the whole answer.

        Raises:
            EndedError: it died, or took longer; its whole process group is gone then.
        """
        until = time.monotonic() + limit
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead: reading says so, and how
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        while True:
            answer = self._answer(until, limit)
            self.at = answer.get("at", self.at)
            yield answer
            if any(word in answer for word in LAST):
                return

    def kill(self) -> None:
        """End the process group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def _answer(self, until: float, limit: float) -> dict[str, Any]:
        while b"\n" not in self._unread:
            self._read_more(until, limit)
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            self.kill()
            raise EndedError("crashed", self.at, f"it answered {line[:80].decode(errors='replace')!r}")
        return found

    def _read_more(self, until: float, limit: float) -> None:
        interrupts.check()
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            ready = selector.select(max(0.0, min(PATIENCE, until - time.monotonic())))
        if ready:
            piece = os.read(self._out, 65536)
            if not piece:
                raise EndedError("crashed", self.at, self._death())
            self._unread += piece
        elif time.monotonic() >= until:
            self.kill()
            raise EndedError("hung", self.at, f"no answer within {limit:.0f} s")

    def _death(self) -> str:
        """How it ended, with its last words; its descendants are ended too."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        status = self.process.returncode
        self.kill()
        how = f"signal {signal.Signals(-status).name}" if status and status < 0 else f"exit status {status}"
        words = last_words(self.log)
        return f"{how}; {words}" if words else how


def last_words(log: Path) -> str:
    """The last line that a process wrote to its log, at most 200 characters."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return next((line[:200] for line in reversed(lines) if line), "")
