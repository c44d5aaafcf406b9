"""Runners in processes of their own: a faulty one is taken out by name, and the others' results stay."""

import json
import os
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sglang_sm120 import cli, gpu
from sglang_sm120.commands.isolated import EndedError, Isolated
from sglang_sm120.commands.tune import contest, jobs, runner_text, runners, whole
from sglang_sm120.commands.tune.jobs import Job
from sglang_sm120.moe import runner_tables
from sglang_sm120.moe.runner_tables import Layer, Place

FAKE = Path(__file__).parents[2] / "children" / "fake_runner.py"
LAYER = Layer("nvfp4", 256, 4096, 1024, 6, 2)
WHERE = (Place("NVIDIA Test", "0.5.23"), gpu.Gpu((12, 0), "NVIDIA Test", "nvml"))
COUNTS = (1, 2)


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """Measures the named fake runners; the table lies in the home that launches use."""
    monkeypatch.setenv("SGLANG_SM120_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(contest, "LIMIT", 2.0)

    def measure(*names, minutes=1.0, counts=COUNTS, **more):
        command = [sys.executable, str(FAKE)]
        return runners.run(
            [Job(LAYER, tmp_path)], minutes, names, command=command, where=WHERE, counts=counts, **more
        )  # fmt: skip

    return measure


def rows(document):
    return {row["runner"]: row for row in document["layers"][0]["runners"]}


def table():
    return runner_tables.read(runner_tables.path_for(WHERE[0]), WHERE[0])[LAYER]


@pytest.mark.parametrize(
    ("faulty", "status", "where"),
    [
        ("wrong", "wrong", "clamp T=6"),
        ("crash", "crashed", "clamp T=6: signal SIGABRT; CUDA error: an illegal memory access"),
        ("hang", "hung", "compiling in"),
        ("unsteady", "unsteady", "clamp T=6"),
        ("refused", "refused", "invalid choice"),
        ("late", "crashed", "exit status 7"),
        ("raises", "failed", "clamp T=6: RuntimeError: no kernel image"),
        ("equal", "equal scales only", "gate and up apart T=6"),
    ],
)
def test_a_faulty_runner_is_out_by_name_and_the_others_stay(tuned, faulty, status, where):
    document = tuned("good", faulty, "quick")
    found = rows(document)
    assert (found[faulty]["status"], where in found[faulty]["why"]) == (status, True), found[faulty]
    for name in ("good", "quick"):
        assert found[name]["status"] == "right"
        assert [t["tokens"] for t in found[name]["times"]] == list(COUNTS)
    assert table()["quick"].times[2].us == pytest.approx(11.05)
    text = runner_text.render(document)
    line = next(line for line in text.splitlines() if line.strip().startswith(f"{faulty} "))
    assert status in line
    assert where in line


def test_a_runner_whose_process_cannot_copy_is_out_and_the_others_are_timed(tuned):
    found = rows(tuned("full", "good"))
    assert (found["full"]["status"], found["good"]["status"]) == ("failed", "right")
    assert [t["tokens"] for t in found["good"]["times"]] == list(COUNTS)


def test_what_a_hanging_runner_started_ends_with_it(tuned):
    found = rows(tuned("hang"))
    started = int(found["hang"]["why"].partition("compiling in ")[2].split(":")[0])
    for _ in range(50):  # the kernel takes a moment to reap
        if not _runs(started):
            break
        time.sleep(0.1)
    assert not _runs(started)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_runner_that_takes_all_the_time_leaves_the_others_theirs(tuned, monkeypatch):
    monkeypatch.setattr(contest, "LIMIT", 600.0)
    found = rows(tuned("hang", "good", minutes=0.1))
    assert found["hang"]["status"] == "hung"
    assert found["good"]["status"] == "right"
    assert found["good"]["times"]


def test_out_of_time_the_same_command_goes_on(tuned, monkeypatch):
    monkeypatch.setenv("FAKE_SECONDS", "0.4")
    many = tuple(2**n for n in range(8))
    first = tuned("good", "slow", minutes=0.06, counts=many)
    assert not first["complete"]
    assert "The time is spent; the same command goes on" in runner_text.render(first)
    done = {t["tokens"] for t in rows(first)["good"].get("times", ())}
    assert done < set(many)
    monkeypatch.setenv("FAKE_SECONDS", "0")
    second = tuned("good", "slow", counts=many)
    assert second["complete"]
    assert {t["tokens"] for t in rows(second)["good"]["times"]} == set(many)
    assert len(rows(second)["good"]["times"]) == len(many)


def test_interrupted_it_keeps_what_it_has_and_ends_the_processes(tuned, tmp_path):
    written = []

    def progress(text, share, left):
        if "T=2" in text:
            written.append(set(table()["good"].times))  # there before anything ends
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned("good", "quick", progress=progress)
    assert written == [{1}]
    kept = table()
    assert kept["good"].status == "right"
    assert set(kept["good"].times) == {1}


def test_samples_of_a_token_count_are_taken_in_turns(tuned, monkeypatch):
    asked = []
    real = Isolated.ask

    def noted(self, line, limit):
        question = json.loads(line)
        if question.get("do") == "time":
            asked.append((question["tokens"], id(self)))
        return real(self, line, limit)

    monkeypatch.setattr(Isolated, "ask", noted)
    tuned("good", "quick", counts=(1,))
    first, second = dict.fromkeys(who for _, who in asked)
    assert [who for _, who in asked] == [first, second] * contest.ROUNDS


def test_a_table_for_every_launch_is_not_measured_with_batch_invariant_experts(tmp_path, monkeypatch):
    """Where a launch asks for those, auto takes our runner whatever the table says."""
    monkeypatch.setenv("SGLANG_SM120_BATCH_INVARIANT", "1")
    command = [sys.executable, "-c", "import json, os; print(json.dumps({'done': sorted(os.environ)}))"]
    start = jobs.starter(Job(LAYER, tmp_path), tmp_path, WHERE[1], tmp_path, command)
    process, line = start("marlin")
    [answer] = process.ask(line, 20)
    process.kill()
    assert "SGLANG_SM120_AUTO" in answer["done"]
    assert "SGLANG_SM120_BATCH_INVARIANT" not in answer["done"]


def test_a_fault_of_our_own_kernel_is_an_error(tuned):
    document = tuned("good", "sm120_triton", counts=(1,))
    [error] = document["errors"]
    assert error.startswith("sm120_triton is crashed for nvfp4 256,4096,1024,6 TP2: clamp T=6: signal SIGABRT")
    assert f"ERROR   {error}" in runner_text.render(document)


def test_that_fault_is_one_of_tune_with_tiles_too(monkeypatch):
    from argparse import Namespace

    monkeypatch.setattr(whole.runners, "run", lambda *_a: {"kind": "runners", "errors": ["sm120_triton is wrong"]})
    monkeypatch.setattr(whole.command, "run", lambda *_a: {"kind": "tiles", "errors": ["no room"]})
    words = {"only": None, "minutes": 10.0, "model_path": None, "tp": 1, "ep": 1, "runners": [], "out": None}
    asked = Namespace(**words, tokens=(1,), routing="uniform")
    assert whole.run(asked, [], print)["errors"] == ["sm120_triton is wrong", "no room"]


def test_a_file_that_is_no_table_is_not_overwritten_and_one_of_another_place_neither(tuned, tmp_path):
    elsewhere = {"schema": 1, "kind": "runners", "gpu": "Other", "sglang": "0", "overlay": "0", "layers": []}
    for content in ("my notes", json.dumps(elsewhere)):
        (tmp_path / "table.json").write_text(content)
        with pytest.raises(runners.RunnersError, match=r"table\.json is there, and is not a table to go on with"):
            tuned("good", out=tmp_path / "table.json")
        assert (tmp_path / "table.json").read_text() == content


def test_a_process_that_answers_nonsense_is_named(tmp_path):
    process = Isolated([sys.executable, "-c", "print('hello')"], os.environ, tmp_path / "log")
    with pytest.raises(EndedError, match="crashed at start: it answered 'hello'"):
        list(process.ask("{}", 10))


def test_a_receipt_has_no_place_of_this_machine_and_a_picture_beside_it(tuned, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runners, "place", lambda: WHERE)
    monkeypatch.setattr(jobs, "CHILD", (str(FAKE),))
    out = tmp_path / "receipt.json"
    shapes = ["--shapes", "256,4096,1024,6,nvfp4", "--tp", "2", "--runners", "good", "wrong"]
    assert cli.main(["tune", "--only", "runners", *shapes, "--minutes", "1", "--receipt", str(out)]) == 0
    assert "good" in capsys.readouterr().out
    assert str(tmp_path) not in out.read_text()
    assert json.loads(out.read_text())["layers"][0]["runners"][0]["times"][0]["samples"]
    [drawn] = tmp_path.glob("*.svg")
    names = [t.text for t in ElementTree.parse(drawn).getroot().iter("{http://www.w3.org/2000/svg}text")]
    assert {"good", "floor", "tokens"} <= set(names)
    assert "wrong" not in names


def test_the_floor_is_what_the_bytes_take(tuned):
    document = tuned("good", counts=(1,))
    [floor] = document["layers"][0]["floor"]
    expert = 3 * 4096 * 1024 * 4.5 / 8
    assert floor["us"] == pytest.approx((6 * expert + 4 * 4096) / 1e12 * 1e6)
