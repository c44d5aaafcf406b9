"""Misspelt commands and flags, and interruptions."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_sm120 import __version__, cli
from sglang_sm120.commands import interrupts
from sglang_sm120.commands.doctor import command as doctor
from sglang_sm120.commands.plan import command as plan
from sglang_sm120.commands.selftest import command as selftest
from sglang_sm120.commands.tune import command as tune
from sglang_sm120.commands.tune import whole


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["paln"], "'paln' is no command; did you mean plan?"),
        (["self-test"], "did you mean selftest?"),
        (["docter", "--json"], "did you mean doctor?"),
        (["launch"], "the commands are plan, doctor, selftest, tune, verify"),
        (["doctor", "--jsn"], "did you mean --json?"),
        (["doctor", "--fix-hint", "--hints"], "unrecognized arguments: --hints"),
        (["plan", "--model-path=/m", "--model", "/m"], "did you mean --model?"),
        (["plan", "--model", "/m", "--tp", "2"], "flags of SGLang come after --"),
        (["verify", "--ulr", "http://h"], "--url"),
        (["doctor", "--", "--tp", "2"], "doctor takes nothing after --"),
        (["plan", "--model", ""], "argument --model: '' names no file or directory"),
        (["tune", "--shapes", "8,512,256,2", "--out", ""], "argument --out: ''"),
        (["selftest", "--receipt", ""], "argument --receipt: ''"),
        (["verify", "--url", "garbage"], "argument --url: 'garbage' is no server's address; expected one as http://"),
        (["verify", "--url", "127.0.0.1:30000"], "argument --url: '127.0.0.1:30000'"),
        (["verify", "--url", "file:///etc/hostname"], "argument --url: 'file:///etc/hostname'"),
        (["verify", "--url", "http://127.0.0.1:99999"], "argument --url: 'http://127.0.0.1:99999'"),
        (["verify", "--url", "http://h", "--reference", "http://"], "argument --reference: 'http://'"),
        (["verify", "--url", "http://h", "--api-kee", "sk-1"], "arguments: --api-kee; did you mean --api-key?"),
    ],
)
def test_near_misses(arguments, says, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert says in capsys.readouterr().err


SECRET = "hunter2"


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "--url", f"http://me:{SECRET}@h:99999"],
        ["verify", "--url", f"me:{SECRET}@h:30000"],
        ["verify", "--url", "http://h", "--api-key", f"{SECRET}\n"],
        ["verify", "--url", "http://h", f"--apikey={SECRET}"],
        ["verify", "--url", "http://h", "--api_key", SECRET],
    ],
)
@pytest.mark.parametrize("json_too", [True, False])
def test_no_secret_is_repeated(arguments, json_too, capsys):
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--json"] if json_too else arguments)
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert (said.out == "") is not json_too


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--json"],
        ["plan", "--model", "x", "--json", "--arch", "sm75"],
        ["doctr", "--json"],
        ["tune", "--json"],
        ["doctor", "--json", "--", "--tp", "2"],
    ],
)
def test_wrong_usage_is_a_document_too(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    said = capsys.readouterr()
    (error,) = json.loads(said.out)["errors"]
    assert error in said.err


def test_json_behind_the_dashes_is_sglangs(capsys):
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--", "--json"])
    assert capsys.readouterr().out == ""


def test_a_system_error_is_a_document_too(monkeypatch, capsys):
    def full():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(doctor, "examine", full)
    assert cli.main(["doctor", "--json"]) == 1
    assert "Too many open files" in json.loads(capsys.readouterr().out)["errors"][0]


@pytest.mark.parametrize("arguments", [["selftest", "--device", "cpu"], ["tune", "--shapes", "8,512,256,2"]])
def test_without_torch_the_way_to_get_it_is_told(arguments, monkeypatch, capsys):
    missing = ModuleNotFoundError("No module named 'torch'", name="torch")
    for module in (selftest, whole):
        monkeypatch.setattr(module, "run", lambda *_: (_ for _ in ()).throw(missing))
    assert cli.main(arguments) == 1
    assert "No module named 'torch'; install SGLang, which brings it: pip install sglang" in capsys.readouterr().err


def test_the_package_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "sglang_sm120", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, __version__)


def test_a_receipt_that_cannot_be_written_is_refused_before_minutes_are_spent(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(selftest, "run", lambda *_: pytest.fail("ran"))
    (tmp_path / "file").touch()
    for receipt in (tmp_path, tmp_path / "file" / "r.json", tmp_path / "nowhere" / "r.json"):
        assert cli.main(["selftest", "--device", "cpu", "--receipt", str(receipt)]) == 1
        assert f"--receipt {receipt} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["selftest", "--device", "cuda", "--json"],
        ["selftest", "--receipt", "/nowhere/at/all", "--json"],
        ["tune", "--model-path", "/nowhere", "--json"],
    ],
)
def test_json_is_one_document_where_there_is_no_answer(arguments, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cli.main(arguments) == 1
    said = capsys.readouterr()
    (error,) = json.loads(said.out)["errors"]
    assert error in said.err


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ({"type": "cpu", "name": "x86_64", "kernel": "Triton's interpreter"}, "Triton's interpreter; no GPU ran it."),
        ({"type": "cuda", "name": "NVIDIA H200"}, "The kernel is right on this GPU."),
    ],
)
def test_selftest_says_what_ran(device, says):
    document = {"device": device, "versions": {}, "correctness": [], "timing": [], "errors": []}
    assert selftest.render(document).endswith(says)


def test_plan_of_another_model_names_no_size(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    text = plan.render(plan.make(tmp_path, []))
    assert "not a DeepSeek-V4 checkpoint" in text
    assert "None" not in text


def test_help_fits_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("plan", "doctor", "selftest", "tune", "verify"):
        with pytest.raises(SystemExit) as end:
            cli.main([command, "--help"])
        assert end.value.code == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize("handler", ["pass", "raise ImportError('initialization failed')"])
def test_an_interruption_within_an_import_ends_the_command_there(tmp_path, handler):
    """torch's modules swallow it, its initializers turn it into an ImportError or abort."""
    (tmp_path / "slow.py").write_text(
        f"import signal\ntry: signal.raise_signal(signal.SIGINT)\nexcept: {handler}\nprint('went on')\n"
    )
    command = (
        "from sglang_sm120 import cli; from sglang_sm120.commands.doctor import command; "
        "command.examine = lambda: __import__('slow'); cli.main(['doctor'])"
    )
    done = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def interrupted(becomes):
    """Work in which a KeyboardInterrupt becomes an exception of another kind, or none until it says how far it is."""

    def work(*given):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if becomes:
                raise becomes from None
        if given:
            progress = given[-1]
            progress("a line")
        else:
            interrupts.check()
        pytest.fail("went on")

    return work


@pytest.mark.parametrize("becomes", [None, KeyboardInterrupt(), TypeError("expected a sequence"), RuntimeError("lost")])
@pytest.mark.parametrize(
    ("module", "function", "arguments", "says"),
    [
        (doctor, "examine", ["doctor"], ""),
        (selftest, "run", ["selftest"], ""),
        (
            tune,
            "run",
            ["tune", "--only", "tiles", "--shapes", "256,4096,512,6"],
            "interrupted; what was measured is kept",
        ),
    ],
)
def test_whatever_an_interruption_becomes_it_ends_the_command(
    module, function, arguments, says, becomes, monkeypatch, capsys
):
    """numpy turns it into a TypeError while it converts a shape; a bare except swallows it."""
    monkeypatch.setattr(module, function, interrupted(becomes))
    assert cli.main(arguments) == 130
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert len(said.err.splitlines()) == (1 if says else 0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_command_runs_outside_the_main_thread(monkeypatch, capsys):
    """In a program's thread pool; signals stay the main thread's, also those of a command that runs there."""
    monkeypatch.setattr(doctor, "examine", lambda: interrupts.check() or {"errors": []})
    monkeypatch.setattr(doctor, "render", lambda document, hints: "done")
    with interrupts.remembered(130), ThreadPoolExecutor(1) as pool:
        before = signal.getsignal(signal.SIGINT)
        assert pool.submit(cli.main, ["doctor"]).result() == 0
        assert signal.getsignal(signal.SIGINT) is before
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert pool.submit(cli.main, ["doctor"]).result() == 130
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    assert capsys.readouterr().out == "done\n"


def test_a_signal_that_is_ignored_stays_so(monkeypatch, capsys):
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        monkeypatch.setattr(doctor, "examine", lambda: signal.raise_signal(signal.SIGINT) or {"errors": []})
        monkeypatch.setattr(doctor, "render", lambda document, hints: "done")
        assert cli.main(["doctor"]) == 0
    finally:
        signal.signal(signal.SIGINT, old)
    assert capsys.readouterr().out == "done\n"
