"""The child process of `plan`, with a stand-in for SGLang's."""

import os
import threading
import time
from pathlib import Path

import pytest

from sglang_sm120.commands.plan import ask, document
from sglang_sm120.commands.plan.document import Answer, Layer, PatchState, Request, Sizes

REQUEST = Request(model="/a model", flags=("--tp", "2"), arch="sm120")
SIZES = Sizes(tp_size=2, ep_size=1, moe_dp_size=None, pp_size=1, speculative_algorithm=None, mem_fraction_static=0.8)
ANSWER = Answer(
    target=Layer(method="M", runner="r", packed=True, faults=("a", "b"), reason="why"),
    sizes=SIZES,
    patches=(PatchState(name="p", status="applied", reason="x"),),
    warnings=("w",),
)


@pytest.fixture
def child(tmp_path, monkeypatch):
    """What runs in the child's place: a shell script."""

    def put(script):
        file = tmp_path / "python"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setattr(ask.sys, "executable", str(file))

    return put


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_messages_arrive_as_they_were_sent():
    assert document.read_request(document.write(REQUEST)) == REQUEST
    assert document.read_answer(document.write(ANSWER)) == ANSWER
    assert document.read_answer(document.write(Answer())) == Answer()


def test_what_is_asked_reaches_the_child_and_its_answer_comes_back(child, tmp_path):
    (tmp_path / "answer").write_text(document.write(ANSWER))
    child(f"cat > {tmp_path}/request; cat {tmp_path}/answer")
    assert ask.ask(REQUEST, stock=False) == ANSWER
    assert document.read_request((tmp_path / "request").read_text()) == REQUEST


def test_a_child_that_ends_without_an_answer(child):
    child("exit 7")
    with pytest.raises(ask.NoAnswerError, match=r"status 7.*stderr"):
        ask.ask(REQUEST, stock=False)


def test_a_child_that_hangs_ends_with_all_that_it_started(child, tmp_path, monkeypatch):
    monkeypatch.setattr(ask, "TIMEOUT_S", 1)
    child(f"sleep 60 & echo $! > {tmp_path}/pid; wait")
    began = time.monotonic()
    with pytest.raises(ask.NoAnswerError, match="within 1 s"):
        ask.ask(REQUEST, stock=False)
    assert time.monotonic() - began < 30  # what it started holds its end of the pipe
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)


def test_ctrl_c_reaches_this_process_alone(child, tmp_path):
    """The terminal's signal goes to a group, and the child has one of its own; also where threads start children."""
    child(f"cat > /dev/null; ps -o pgid= -p $$ >> {tmp_path}/groups; exit 7")

    def once():
        with pytest.raises(ask.NoAnswerError):
            ask.ask(REQUEST, stock=False)

    threads = [threading.Thread(target=once) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    groups = {int(line) for line in (tmp_path / "groups").read_text().split()}
    assert len(groups) == 2
    assert os.getpgrp() not in groups
