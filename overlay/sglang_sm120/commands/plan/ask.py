"""The launch, asked of the installed SGLang in a child process.

A process of its own, because the GPU is simulated there and SGLang keeps what it has seen.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from sglang_sm120 import settings
from sglang_sm120.commands.plan import document
from sglang_sm120.commands.plan.document import Answer, Request

TIMEOUT_S = 300


class NoAnswerError(RuntimeError):
    """The child ended, or took too long, without an answer."""


def ask(request: Request, stock: bool) -> Answer:
    """What becomes of a launch.

    Args:
        request: the launch.
        stock: leave the overlay out.

    Raises:
        NoAnswerError: nobody can say.
    """
    environment = dict(os.environ)
    if stock:
        environment[settings.OFF.name] = "0"
    status, said = _run(request, environment)
    if status is None:
        raise NoAnswerError(f"SGLang did not resolve the launch within {TIMEOUT_S} s; try on an idle machine")
    try:
        return document.read_answer(said)
    except ValueError:
        said = f"SGLang ended (status {status}) without an answer; its messages are on stderr"
        raise NoAnswerError(said) from None


def _run(request: Request, environment: dict[str, str]) -> tuple[int | None, str]:
    """Exit status of the child, None where it took too long, and its answer.

    The child has a process group of its own: Ctrl-C in a terminal is this process's business, which then ends the
    child and whatever the child has started. If this process is killed, the child sees to its own end.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "sglang_sm120.commands.plan.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        process_group=0,
    )
    try:
        said, _ = child.communicate(document.write(request), timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    return child.returncode, said
