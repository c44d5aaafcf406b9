"""Commands that are killed or interrupted, without a reader, without a home, on a narrow or an ASCII terminal."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from helpers import COMMAND, environment, run


def eventually(true, seconds=100.0):
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def imports_torch(process):
    """Whether torch's libraries are in its memory: the second half of seconds that imports take is to come."""
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def are_gone(processes):
    """Whether they have ended, or soon do. A zombie has: who adopts orphans here may not look after them."""

    def lives(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    return eventually(lambda: not any(map(lives, processes)), seconds=20)


def test_a_killed_plan_leaves_no_process(checkpoints):
    command = [COMMAND, "plan", "--model", checkpoints["wide"]]
    started = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (child,) = eventually(psutil.Process(started.pid).children)
    eventually(lambda: imports_torch(child))
    started.kill()
    started.wait(timeout=20)
    assert are_gone([child])


def test_a_closed_stdout_still_has_an_exit_status(tmp_path):
    done = run("sh", "-c", f"{COMMAND} doctor >&-")
    assert (done.returncode, done.stderr) == (0, "")
    full = run("sh", "-c", f"{COMMAND} doctor >/dev/full")
    assert full.returncode == 1
    assert "cannot write the answer: No space left on device" in full.stderr


def has_child(process, _stderr):
    return process.children()


def has_child_at_work(process, _stderr):
    return any(map(imports_torch, process.children()))


def itself_imports(process, _stderr):
    return imports_torch(process)


def runs_the_kernel(_process, stderr):
    return "checking " in stderr.read_text()


@pytest.mark.parametrize("when", [has_child, has_child_at_work])
def test_an_interrupted_plan_leaves_no_process(checkpoints, tmp_path, when):
    """Before and after the child takes the signal itself."""
    assert interrupted(when, tmp_path, "plan", "--model", checkpoints["hybrid"]) == ("", "")


@pytest.mark.parametrize("when", [itself_imports, runs_the_kernel])
def test_an_interrupted_selftest_leaves_no_file(tmp_path, tmp_path_factory, when):
    arguments = ["selftest", "--device", "cpu", "--receipt", tmp_path / "receipt.json"]
    out, _ = interrupted(when, tmp_path_factory.mktemp("said"), *arguments)
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def interrupted(when, said, *arguments):
    """Ctrl-C in a terminal, once it is so far: 130, no traceback, no process left. What was printed."""
    out, err = said / "out", said / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        started = subprocess.Popen(
            [COMMAND, *arguments], env=environment(), stdout=stdout, stderr=stderr, start_new_session=True
        )
    process = psutil.Process(started.pid)
    eventually(lambda: when(process, err))
    family = [process, *process.children(recursive=True)]
    os.killpg(started.pid, signal.SIGINT)
    assert started.wait(timeout=60) == 130, err.read_text()
    assert "Traceback" not in err.read_text()
    assert are_gone(family)
    return out.read_text(), err.read_text()


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
