"""The generated parts of documents: one writer, no part that nobody writes, none that is out of date."""

import json
import re
import subprocess
import sys

import pytest
from documents import ROOT

from scripts import docs, markdown
from scripts.pages import messages, planned, selftests, server_run, servers, tiles

MARKED = subprocess.check_output(["git", "ls-files", "*.md"], cwd=ROOT, text=True).splitlines()


def test_every_marker_has_a_function_and_every_function_a_marker():
    found = {}
    for name in MARKED:
        marks = set(re.findall(r"<!-- ([\w-]+) -->", (ROOT / name).read_text(encoding="utf-8")))
        if marks:
            found[name] = marks
    wanted = {name: set(parts) for name, parts in docs.PARTS.items() if markdown.WHOLE not in parts}
    assert found == wanted
    assert set(docs.PARTS) <= set(MARKED)


@pytest.mark.parametrize("name", docs.PARTS)
def test_the_parts_are_current(name):
    """But for the output of `plan`, which `scripts/test.sh` checks with all others."""
    present, wanted = docs.written(name, fast=True)
    assert present == wanted


@pytest.fixture
def one_part(tmp_path, monkeypatch):
    """A document with one generated part, as all that `docs.py` knows."""
    file = tmp_path / "PAGE.md"
    file.write_text("before\n\n<!-- part -->\nold\n<!-- /part -->\n\nafter\n")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "PARTS", {"PAGE.md": {"part": lambda: "new"}})
    return file


def test_a_stale_part_fails_the_check_and_is_written(one_part, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])
    assert docs.main() == 1
    assert "PAGE.md is out of date; run scripts/docs.py PAGE.md" in capsys.readouterr().err
    assert "old" in one_part.read_text()
    monkeypatch.setattr(sys, "argv", ["docs.py"])
    assert docs.main() == 0
    assert one_part.read_text() == "before\n\n<!-- part -->\nnew\n<!-- /part -->\n\nafter\n"
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])
    assert docs.main() == 0


def test_fast_leaves_slow_parts_alone(one_part, monkeypatch):
    monkeypatch.setattr(docs, "SLOW", (docs.PARTS["PAGE.md"]["part"],))
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check", "--fast"])
    assert docs.main() == 0
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])
    assert docs.main() == 1


def test_a_missing_marker_is_named(one_part, monkeypatch, capsys):
    one_part.write_text("before\n<!-- part -->\n")
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])
    assert docs.main() == 1
    assert "PAGE.md: <!-- part --> and <!-- /part --> must each stand once" in capsys.readouterr().err


def test_an_unknown_document_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["docs.py", "NOTHING.md"])
    with pytest.raises(SystemExit) as ended:
        docs.main()
    assert ended.value.code == 2
    assert "NOTHING.md has no generated part; expected one of README.md" in capsys.readouterr().err


def test_a_part_on_one_line_stays_there():
    assert markdown.replaced("a <!-- x -->1<!-- /x -->, b", "x", "2") == "a <!-- x -->2<!-- /x -->, b"


def test_a_cell_cannot_break_its_table():
    table = markdown.markdown_table(("a", "b"), [("x|y", "two\nlines")])
    assert table.splitlines()[-1] == "| x\\|y | two lines |"
    with pytest.raises(ValueError, match="1 cells under 2 titles"):
        markdown.markdown_table(("a", "b"), [("x",)])


def test_the_index_has_every_section_and_its_anchor():
    text = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)$", text, re.M)
    assert "The overlay stops the launch" in sections
    for title in sections:
        assert f"[{title}](#{messages.anchor(title)})" in messages.index()


def test_each_entry_says_first_what_to_do():
    text = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text(encoding="utf-8")
    for entry in re.split(r"^### ", text, flags=re.M)[1:]:
        body = re.split(r"^## ", entry, flags=re.M)[0]
        assert body.count("**Do**:") == 1, entry[:60]
        assert "**Why**" not in body or body.index("**Do**:") < body.index("**Why**"), entry[:60]


def test_the_worst_tile_is_the_worst(tmp_path, monkeypatch):
    rows = [row for row in tiles.compiled() if tiles.name(row) == "mxfp4 bf16 64x8"]
    rows[0] |= {"registers": 255}
    rows[1] |= {"ctas_per_sm": 1, "weight_copies_16b": False}
    (tmp_path / "receipt.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(tiles, "RECEIPT", tmp_path / "receipt.json")
    (line,) = tiles.worst().splitlines()[2:]
    assert re.search(r"\| 255 \|.*\| 1 \| NO \|$", line)


def test_a_server_is_before_and_after_when_one_of_a_pair_serves(monkeypatch):
    ready = {
        "outcome": "ready",
        "outcome_after_requests": "serves",
        "command": ["--x", "DSPARK"],
        "says": "",
        "log": [],
    }
    ended = ready | {
        "outcome": "ended",
        "said": "  File x",
        "log": ["  File x", "ImportError: no 'f' from 'sglang.srt' (sglang/srt.py)"],
    }
    run = {"servers": {"stock-a": ended, "ours-a": ready, "stock-b": ready, "ours-b": ready, "stock-c": ended}}
    monkeypatch.setattr(servers, "receipts", lambda: {"2026-01-02-sglang-0.5.17-two": run})
    (row,) = servers.before_after().splitlines()[2:]
    assert row == (
        "| hybrid, DSpark | ends: `ImportError: no 'f'` | serves | "
        "[01-02-two](../benchmarks/receipts/e2e/2026-01-02-sglang-0.5.17-two.md) |"
    )


def test_every_run_has_its_page_and_its_row_every_server():
    runs = servers.runs().splitlines()
    for name, receipt in server_run.receipts().items():
        assert f"benchmarks/receipts/e2e/{name}.md" in docs.PARTS
        page = (ROOT / "benchmarks" / "receipts" / "e2e" / f"{name}.md").read_text(encoding="utf-8")
        (row,) = [row for row in runs if row.startswith(f"| {servers.link(name)} |")]
        served, others = row.split(" | ")[1:]
        for server, facts in receipt["servers"].items():
            assert f"`{server}`" in (served if servers.serves(facts) else others)
            assert all(line in page for line in facts["log"][:3])


def test_no_figure_is_shown_without_a_receipt_of_the_card(tmp_path, monkeypatch):
    monkeypatch.setattr(selftests, "RECEIPTS", tmp_path)
    assert selftests.sentence() == selftests.NOTHING
    row = {"experts": 8, "hidden": 512, "inter": 256, "tokens": 1, "activation": "bf16", "floor_us": 1, "median_us": 2}
    receipt = {
        "schema": 1,
        "kind": "selftest",
        "timing": [row],
        "versions": {"triton": "3.8.0"},
        "started": "2027-01-01",
    }
    receipt |= {"copy_bytes_per_s": 1.5e12, "device": {"name": "RTX 5090", "capability": [12, 0]}}
    (tmp_path / "card.json").write_text(json.dumps(receipt))
    assert "RTX 5090" in selftests.sentence()
    assert "| 8, 512, 256 | 1 | bf16 | 1.0 | 2.0 |" in selftests.tables()
    (tmp_path / "card.json").write_text(json.dumps(receipt | {"device": {"name": "H200", "capability": [9, 0]}}))
    assert selftests.tables() == selftests.NOTHING


def test_an_owners_report_shows_the_runners_of_the_card(tmp_path, monkeypatch):
    monkeypatch.setattr(selftests, "RECEIPTS", tmp_path)
    layer = {"format": "nvfp4", "experts": 256, "hidden": 4096, "inter": 1024, "top_k": 6, "tp": 2, "ep": 1}
    rows = [{"runner": "marlin", "status": "right", "times": [{"tokens": 4, "us": 41.26, "low": 41, "high": 42}]}]
    rows.append({"runner": "flashinfer_cutlass", "status": "wrong", "why": "clamp T=6"})
    entry = layer | {"runners": rows, "floor": [{"tokens": 4, "us": 30.04}]}
    table = {"schema": 1, "kind": "runners", "gpu": "RTX 5090", "sglang": "0.5.23", "capability": [12, 0]}
    report = {"schema": 1, "kind": "report", "tune": table | {"layers": [entry]}}
    (tmp_path / "owner.json").write_text(json.dumps(report))
    assert selftests.sentence() == "[benchmarks](benchmarks/README.md) has times on RTX 5090."
    shown = selftests.tables()
    assert "RTX 5090, SGLang 0.5.23, nvfp4 256,4096,1024,6 TP2" in shown
    assert "Not right: flashinfer_cutlass: wrong. [Receipt](receipts/owner.json)" in shown
    assert "| 4 | 30.0 | 41.3 |" in shown
    report["tune"]["capability"] = [9, 0]
    (tmp_path / "owner.json").write_text(json.dumps(report))
    assert selftests.sentence() == selftests.NOTHING


def test_the_shown_plan_is_of_the_command_above_it():
    assert planned.command()[:3] == ["plan", "--model", "$MODEL"]
    assert "EAGLE" in planned.command()
