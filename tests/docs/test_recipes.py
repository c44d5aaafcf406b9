"""The launch recipes: usage, start, and stop."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from helpers import run

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "recipes"
RECIPES = sorted(SCRIPTS.glob("*.sh"))
STARTABLE = [path for path in RECIPES if path.name != "common.sh"]


def test_shell_scripts_are_clean():
    names = {path.stem for path in STARTABLE}
    assert names >= {"target", "eagle", "dspark", "pcie", "two_nodes", "disaggregated"}
    if shutil.which("shellcheck"):
        done = run("shellcheck", "-x", "-P", "SCRIPTDIR", *RECIPES, cwd=SCRIPTS)
        assert done.returncode == 0, done.stdout
    for path in RECIPES:
        assert run("bash", "-n", path).returncode == 0
        assert path.name == "common.sh" or os.access(path, os.X_OK)


@pytest.mark.parametrize("path", STARTABLE, ids=lambda p: p.name)
def test_help_is_its_own_comment(path):
    done = run(path, "--help")
    assert done.returncode == 0
    assert f"scripts/recipes/{path.name} MODEL" in done.stdout
    assert "--dry-run" in done.stdout
    assert "set -euo" not in done.stdout
    assert len(done.stdout.splitlines()) < 45


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("target.sh", "no MODEL"),
        ("target.sh --port 8000 /m", "MODEL comes before"),
        ("target.sh /m --tp many", "--tp is 'many'"),
        ("target.sh /m --tp", "--tp is ''"),
        ("eagle.sh /m --steps 0", "--steps is '0'"),
        ("pcie.sh /m", "expected 2, 4 or 8"),
        ("two_nodes.sh /m --head a", "--rank is ''"),
        ("two_nodes.sh /m --rank 0", "--head is missing"),
        ("two_nodes.sh /m --rank 0 --head a --tp 3", "2 hosts need a multiple of 2"),
        ("two_nodes.sh /m --rank 0 --head a --nodes 3", "--tp is 3; DeepSeek-V4's heads have no third: --stages"),
        ("two_nodes.sh /m --rank 0 --head a --nodes 3 --tp 6 --dspark", "--tp is 6; DeepSeek-V4's heads have no third"),
        ("two_nodes.sh /m --rank 4 --head a --nodes 4", "--rank is '4'; expected 0 to 3"),
        ("two_nodes.sh /m --rank 0 --head a --dspark --draft /missing", "--draft is '/missing'"),
        ("two_nodes.sh /m --rank 0 --head a:x", "--head is 'a:x'"),
        ("two_nodes.sh /m --rank 0 --head 10.0.0.1:99999", "--head is '10.0.0.1:99999'"),
        ("disaggregated.sh /m --port 99999", "--port is '99999'"),
        ("eagle.sh /m --dryrun", "--dryrun is no option of this recipe; did you mean --dry-run?"),
        ("pcie.sh /m --tp 2 --no_draft", "did you mean --no-draft?"),
        ("pcie.sh /m --tp 2 --ep=2", "--ep takes no value"),
        ("eagle.sh /m --dry-run=1", "--dry-run takes no value"),
        ("target.sh /m --tp=many", "--tp is 'many'"),
        ("PYTHON=/nonexist target.sh /m", "PYTHON is '/nonexist'"),
        ("dspark.sh /m --draft /missing", "--draft is '/missing'"),
        ("disaggregated.sh /m --transfer pigeon", "expected nixl"),
    ],
)
def test_wrong_usage_is_2(stand_ins, tree, line, says):
    settings, script = re.fullmatch(r"((?:\w+=\S+ )*)(.*)", line).groups()
    done, notes = stand_ins.run(f"{settings}scripts/recipes/{script}", tree)
    assert (done.returncode, notes) == (2, [])
    assert says in done.stderr


def test_without_the_overlay_nothing_starts(stand_ins, tree):
    done, notes = stand_ins.run("PYTHON=/bin/false scripts/recipes/target.sh /m", tree)
    assert (done.returncode, notes) == (1, [])
    assert "not installed" in done.stderr


def test_an_option_and_its_value_may_be_one_word(stand_ins, tree):
    (apart,), (joined,) = (
        stand_ins.run(f"scripts/recipes/eagle.sh $MODEL {options} --log-level=info", tree)[1]
        for options in ("--tp 4 --steps 3", "--tp=4 --steps=3")
    )
    assert joined == apart
    assert joined["arguments"][2:4] == ["--tp", "4"]
    assert joined["arguments"][-1] == "--log-level=info"


@pytest.mark.parametrize("missing", [False, True])
def test_the_dry_run_says_what_the_run_would_miss(stand_ins, tree, missing):
    line = "scripts/recipes/disaggregated.sh $MODEL --dry-run"
    done, notes = stand_ins.run(line, tree, STAND_IN_MISSING="sglang_router" if missing else "")
    assert [note["kind"] for note in notes] == ["plan", "plan"]
    assert ("sglang-router is missing" in done.stderr, done.returncode) == (missing, int(missing))


def test_a_recipe_becomes_the_server(stand_ins, tree, model):
    done, notes = stand_ins.run("scripts/recipes/two_nodes.sh $MODEL --rank 1 --head h --gb10 --log-level info", tree)
    assert done.returncode == 0
    (launch,) = notes
    assert launch["kind"] == "launch"
    assert launch["arguments"][:2] == ["--model-path", str(model)]
    assert launch["arguments"][-2:] == ["--log-level", "info"]
    assert launch["environment"]["SGLANG_ENABLE_JIT_DEEPGEMM"] == "0"


FOUND = "--nnodes {n} --node-rank 1 --dist-init-addr h:25000 --enable-metrics"


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ("", "--tp 2 " + FOUND.format(n=2) + " --speculative-algorithm EAGLE"),
        ("--dspark", f"--tp 2 {FOUND.format(n=2)} --speculative-algorithm DSPARK --speculative-dspark-block-size 4"),
        ("--dspark --nodes 4 --block 3", f"--tp 4 {FOUND.format(n=4)} --speculative-algorithm DSPARK --speculative-d"),
        ("--nodes 3 --stages", f"--tp 1 --pp-size 3 {FOUND.format(n=3)}"),
        ("--nodes 2 --tp 8 --stages", f"--tp 4 --pp-size 2 {FOUND.format(n=2)}"),
        ("--no-draft --nodes 4", f"--tp 4 {FOUND.format(n=4)}"),
    ],
)
def test_several_hosts(stand_ins, tree, options, flags):
    done, (launch,) = stand_ins.run(f"scripts/recipes/two_nodes.sh $MODEL --rank 1 --head h {options}", tree)
    assert done.returncode == 0
    said = " ".join(launch["arguments"][2:])
    assert said.startswith(flags)
    assert said == flags or "speculative" in flags


def alive_in_session(leader):
    """Processes of a session, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                _, _, rest = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue
            state, _, _, session = rest.split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(entry.name))
    return found


@pytest.fixture
def disaggregated(stand_ins, tree):
    """Start the recipe of three programs in a session of its own; whatever is left is killed at the end."""
    started = []

    def start(**environment):
        stand_ins.notes.write_text("")
        command = [tree / "scripts" / "recipes" / "disaggregated.sh", stand_ins.environment["MODEL"]]
        process = subprocess.Popen(
            command, env=stand_ins.environment | environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        deadline = time.monotonic() + 20
        while stand_ins.notes.read_text().count("\n") < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert stand_ins.notes.read_text().count("\n") == 3
        return process

    yield start
    for process in started:
        for pid in alive_in_session(process.pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_the_three_programs_leaves_none(disaggregated, sent, status):
    process = disaggregated(STAND_IN_LAUNCH="60 0", STAND_IN_ROUTER="60 0")
    process.send_signal(sent)
    assert process.wait(timeout=20) == status
    assert alive_in_session(process.pid) == []


def test_when_one_ends_all_end(disaggregated):
    process = disaggregated(STAND_IN_LAUNCH="60 0", STAND_IN_ROUTER="0.2 7")
    _, said = process.communicate(timeout=20)
    assert process.returncode == 7
    assert "ended with status 7" in said
    assert alive_in_session(process.pid) == []
