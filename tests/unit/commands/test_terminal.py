"""What is printed stays readable: on 60 columns, without colours, in a pipe, and in any encoding."""

import io
import sys

import pytest

from sglang_sm120.commands import terminal, verify
from sglang_sm120.commands.doctor import command as doctor
from sglang_sm120.commands.tune import command as tune

LONG = "patch   mxfp4_nextn: not applicable (no NVIDIA GPU; the overlay acts on SM120 and SM121 and nowhere else)"
TABLE_ROW = "  ok    E256 H4096 I2048 top6 T1024     mxfp8 5.0e-02 <= 8e-02"


def test_a_pipe_gets_whole_lines():
    assert terminal.wrapped(LONG, None) == LONG


def test_a_narrow_terminal_gets_lines_that_fit_and_words_that_are_whole():
    lines = terminal.wrapped(f"{LONG}\n{TABLE_ROW[:60]}", 60).split("\n")
    assert max(map(len, lines)) <= 60
    assert lines[-1] == TABLE_ROW[:60]
    assert all(line.startswith(" " * 8) for line in lines[1:-1])  # under the text, not under the label
    assert " ".join(" ".join(lines[:-1]).split()) == " ".join(LONG.split())


def test_words_that_are_longer_than_the_line_are_cut_only_then():
    path = "/" + "x" * 90
    assert "".join(line.strip() for line in terminal.wrapped(f"table   {path}", 60).split("\n")).endswith("x")


@pytest.mark.parametrize(
    "text",
    [
        doctor.render(doctor.examine(), with_hints=True),
        tune.render(tune.check()),
        verify.render(
            {
                "url": "http://host:30000", "sglang": "0.5.23", "overlay": "0.1.0", "target_runner": "x",
                "draft_runner": "sm120_triton", "ranks": {"seen": 1, "expected": 2, "dispatches": 3},
                "acceptance_length": 1.5, "unseen": ["u " * 50], "errors": ["e " * 50],
                "canaries": [{"prompt": "Repeat after me: red green blue red green blue", "answers": ["é☃" * 30]}],
            }
        ),
    ],
    ids=["doctor", "tune", "verify"],
)  # fmt: skip
def test_commands_fit_60_columns(text):
    assert max(map(len, terminal.wrapped(text, 60).split("\n"))) <= 60
    assert "\x1b" not in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_encoding_fails(monkeypatch, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding))
    terminal.prepare()
    terminal.show("Modèle ☃ \udcff", None)
    assert b"Mod" in raw.getvalue()


def test_closed_streams(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    terminal.prepare()
    terminal.show("gone", None)
    print("this too", file=sys.stderr)
    with sys.stdout, sys.stderr:
        assert sys.stdout.name == sys.stderr.name == "/dev/null"
