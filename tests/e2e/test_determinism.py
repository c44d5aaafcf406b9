"""Greedy texts of servers against each other: what counts as the same, and that a run asks and says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.e2e import determinism, first_difference
from scripts.pages import texts

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "children" / "fake_server.py"


def row(ids, logprobs):
    return {"ids": list(ids), "logprobs": list(logprobs)}


def test_a_text_is_the_same_only_with_all_its_log_probabilities():
    one = [row("abc", (0.1, 0.2, 0.3))] * 3
    other = [row("abc", (0.1, 0.2, 0.3)), row("abc", (0.1, 0.2, 0.5)), row("abd", (0.1, 0.2, 0.3))]
    found = determinism.difference(one, other)
    assert (found["prompts"], found["tokens"], found["bits"]) == (3, 2, 1)
    assert found["until"] == [3, 3, 2]
    assert round(found["largest"], 6) == 0.2


def test_an_error_is_no_answer_that_agrees():
    assert determinism.difference([{"error": "503"}], [row("a", [0.5])]) is None


def test_a_run_compares_each_server_with_itself_and_with_the_one_that_it_must_repeat(tmp_path):
    only = ["inv-hybrid-plain", "inv-hybrid-1"]
    command = [sys.executable, ROOT / "benchmarks" / "e2e" / "run.py", "--out", tmp_path, "--only", *only, "--small"]
    command += ["--limit", "100", "--port", "24300", "--command", sys.executable, FAKE]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "CUDA_")) or k == "SGLANG_SM120_HOME"}
    kept["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "result.json").read_text())["determinism"]
    asked = {(f["server"], f["part"], f["against"]) for f in found if f["bits"] == f["prompts"] == determinism.AT_ONCE}
    themselves = {(name, part, "alone") for name in only for part in ("again", "together", "mixed")}
    assert asked == themselves | {("inv-hybrid-1", part, "inv-hybrid-plain") for part in ("alone", "together")}
    assert "inv-hybrid-1, together, against inv-hybrid-plain: 16 of 16 texts equal" in done.stdout
    page = "\n".join(texts.section(found))
    assert "| `inv-hybrid-1` | together | `inv-hybrid-plain` | 16 of 16 | 16 of 16 |" in page


def forward(path, ids, places, **outputs):
    """A file as SGLang's tensor dump writes it."""
    info = {first_difference.INFO + "input_ids": torch.tensor(ids)}
    info[first_difference.INFO + "positions"] = torch.tensor(places)
    torch.save({f"model.{name}": value for name, value in outputs.items()} | info, path)
    return path


def test_the_first_module_that_depends_on_the_batch_is_named(tmp_path):
    """The other request comes first, with the same token elsewhere; what follows the difference is not named."""
    before, value = torch.ones(1, 4), torch.full((1, 4), 0.5)
    alone = forward(tmp_path / "Pass0.pt", [7], [3], norm=before, attn=value, gate=value)
    both = torch.cat([before * 9, before])
    apart = torch.cat([value, value + 0.25])
    together = forward(tmp_path / "Pass1.pt", [7, 7], [9, 3], norm=both, attn=apart, gate=apart)
    found = first_difference.compared([alone], [together], {3: 7})
    assert found == [{"phase": "decode", "module": "model.attn", "tokens": 1, "largest": 0.25}]
    assert first_difference.compared([alone], [alone], {3: 7})[0]["module"] == "none"
    assert first_difference.compared([alone], [together], {3: 8}) == []
