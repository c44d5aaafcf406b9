"""Documents of a newer version: every reader says what it is and which version reads it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.pages import selftests
from sglang_sm120 import __version__, schemas

ROOT = Path(__file__).resolve().parents[2]


def test_the_schema_that_is_read():
    document = {"schema": 1}
    assert schemas.check(document, "a receipt", 1) is document


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (
            {"schema": 2, "versions": {"sglang-sm120": "0.4.0"}},
            "It needs sglang-sm120 0.4.0, which wrote it, or a newer",
        ),
        ({"schema": 2, "overlay": "0.5.0"}, "It needs sglang-sm120 0.5.0"),
        ({"schema": 2}, "It needs the sglang-sm120 that wrote it"),
        ({"schema": 2}, f"this sglang-sm120 {__version__} reads schema 1"),
        ({"schema": 0}, "Make it anew"),
        ({"schema": "1"}, "not a receipt: it has no schema number"),
        ({}, "not a receipt"),
        ([], "not a receipt"),
        (None, "not a receipt"),
    ],
)
def test_others(document, says):
    with pytest.raises(schemas.SchemaError) as error:
        schemas.check(document, "a receipt", 1)
    assert says in str(error.value)


def test_a_reader_of_several():
    for number in (1, 2):
        assert schemas.check({"schema": number}, "a receipt", 2, oldest=1)
    with pytest.raises(schemas.SchemaError, match="of schema 3"):
        schemas.check({"schema": 3}, "a receipt", 2, oldest=1)


def test_the_documents_generator_names_a_newer_receipt(tmp_path, monkeypatch):
    receipt = {"schema": 9, "kind": "selftest", "timing": [1], "versions": {"sglang-sm120": "0.8.0"}}
    (tmp_path / "new.json").write_text(json.dumps(receipt))
    monkeypatch.setattr(selftests, "RECEIPTS", tmp_path)
    with pytest.raises(SystemExit, match=r"new\.json: a receipt of selftest of schema 9.*needs sglang-sm120 0\.8\.0"):
        selftests.receipts()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (json.dumps({"schema": 9, "overlay": "0.7.0", "rows": []}), "of schema 9; this sglang-sm120"),
        ("<html>", "is no JSON"),
        (json.dumps({"schema": 1, "rows": []}), "without rows"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_the_models_front_reads_reports(tmp_path, text, says):
    file = tmp_path / "report.json"
    if text is not None:
        file.write_text(text)
    script = ROOT / "benchmarks" / "kernels" / "model_sm120.py"
    done = subprocess.run([sys.executable, script, file], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
