"""Commands that are killed or interrupted, without a reader, without a home, on a narrow or an ASCII terminal."""

import contextlib
import json
import os
import signal
import subprocess
import time

import pytest
from helpers import COMMAND, environment, run


def test_a_killed_plan_leaves_no_process(checkpoints):
    started = subprocess.Popen(
        [COMMAND, "plan", "--model", checkpoints["wide"]], env=environment(), stdout=-3, stderr=-3
    )
    (child,) = children_of(started.pid, within=20)
    time.sleep(2)
    started.kill()
    started.wait(timeout=20)
    assert are_gone([child])


def children_of(pid, within=0.0):
    """Process ids; waits until there is one, or so many seconds."""
    deadline = time.monotonic() + within
    while True:
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
        found = [int(word) for word in listed.stdout.split()]
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def are_gone(pids):
    """Whether these processes end within ten seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.1)
    return False


def test_a_closed_stdout_still_has_an_exit_status(tmp_path):
    done = run("sh", "-c", f"{COMMAND} doctor >&-")
    assert (done.returncode, done.stderr) == (0, "")
    full = run("sh", "-c", f"{COMMAND} doctor >/dev/full")
    assert full.returncode == 1
    assert "cannot write the answer: No space left on device" in full.stderr


def test_an_interrupted_plan_leaves_no_process(checkpoints):
    for seconds in (0.5, 3):  # before and after the child takes the signal itself
        assert interrupted(seconds, "plan", "--model", checkpoints["hybrid"]) == ("", "")


@pytest.mark.parametrize("seconds", [0.7, 6])  # while torch is imported, and while the kernel runs
def test_an_interrupted_selftest_leaves_no_file(tmp_path, seconds):
    out, _ = interrupted(seconds, "selftest", "--device", "cpu", "--receipt", tmp_path / "receipt.json")
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def interrupted(seconds, *arguments):
    """Ctrl-C in a terminal, some time after the start: 130, no traceback, no process left. What was printed."""
    started = subprocess.Popen(
        [COMMAND, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(seconds)
    children = children_of(started.pid)
    os.killpg(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130, err
    assert "Traceback" not in err
    assert are_gone(children)  # `plan`'s has a group of its own
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)
    return out, err


def test_a_reader_that_has_seen_enough_is_no_error():
    done = run("bash", "-c", f"set -o pipefail; {COMMAND} doctor | head -n 1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("sglang-sm120 ")
    assert run("bash", "-c", f"set -o pipefail; {COMMAND} doctor --json | true").stderr == ""


HOMELESS = {
    "a home that is not there and cannot be made": {"HOME": "/proc/nowhere"},
    "a home that is no directory": {"HOME": "/dev/null"},
    "no HOME": {"HOME": None},
    "our own home cannot be made": {"SGLANG_SM120_HOME": "/proc/nowhere"},
}


def homeless(how):
    changed = environment(**{k: v or "" for k, v in HOMELESS[how].items()})
    for name, value in HOMELESS[how].items():
        if value is None:
            del changed[name]
    return changed


@pytest.mark.parametrize("how", HOMELESS)
def test_without_a_home_the_small_commands_work(how):
    for arguments in (["doctor"], ["tune", "--check"]):
        done = run(COMMAND, *arguments, env=homeless(how), cwd="/")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


@pytest.mark.sglang
@pytest.mark.parametrize("how", ["a home that is not there and cannot be made", "no HOME"])
def test_without_a_home_plan_works_or_says_what_to_set(checkpoints, how):
    done = run(COMMAND, "plan", "--model", checkpoints["hybrid"], "--json", env=homeless(how), cwd="/")
    errors = json.loads(done.stdout)["errors"]
    if how == "no HOME":
        assert errors == []
        return
    (error,) = errors
    assert "/proc/nowhere" in error
    assert "set HOME to a directory that can be written" in error


def test_a_terminal_of_60_columns_without_colours(checkpoints):
    """On a pseudo-terminal: no line is longer than it, no control sequence, whatever TERM and the locale are."""
    more = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "60", "LC_ALL": "C", "PYTHONUTF8": "0"}
    more["PYTHONCOERCECLOCALE"] = "0"
    for arguments in (["doctor", "--fix-hints"], ["plan", "--model", "/nowhere/mod\u00e8le"], ["tune", "--check"]):
        ours, theirs = os.openpty()
        done = subprocess.Popen([COMMAND, *arguments], env=environment(**more), stdout=theirs, stderr=-1)
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # what a terminal answers once its program has ended
            while part := os.read(ours, 4096):
                text += part
        os.close(ours)
        assert "Traceback" not in done.communicate(timeout=60)[1].decode()
        lines = text.decode("ascii").splitlines()
        assert lines
        assert max(map(len, lines)) <= 60, lines
        assert "\x1b" not in text.decode("ascii")


@pytest.mark.parametrize("arguments", [["doctor"], ["tune", "--check"], ["plan", "--model", "/nowhere/mod\u00e8le"]])
def test_an_ascii_pipe(arguments):
    more = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run(COMMAND, *arguments, env=environment(**more))
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr
    assert "UnicodeEncodeError" not in done.stderr
