"""`scripts/compat/drift.py --check`: what a newer SGLang changes under the patches."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sglang_sm120.upstream import releases

SCRIPT = Path(__file__).parents[2] / "scripts" / "compat" / "drift.py"
NEWEST = releases.PROVEN[-1]
TARGET = "srt/layers/quantization/modelopt_quant.py"


def drift(*arguments):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def states(text):
    return {t["target"].rpartition(".")[2]: t for t in json.loads(text)["targets"]}


def test_the_release_itself_is_the_same(release_tree):
    status, out, _ = drift("--check", release_tree(NEWEST), "--json")
    assert status == 0
    assert {t["state"] for t in json.loads(out)["targets"]} == {"same"}
    assert json.loads(out)["seams"] == []


@pytest.fixture
def wheel(release_tree, tmp_path):
    """The newest release's package as a wheel: one target changed, one is gone, and a registration was added."""
    root, file = release_tree(NEWEST), tmp_path / "sglang-0.6.99-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path in (root / "sglang" / "srt").rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if path.match(f"*/{TARGET}"):
                text = text.replace("# Fall back to MXFP4 for MTP MoE layers\n", "assert prefix\n", 1)
            if path.match("*/arg_groups/resolution_hooks.py"):
                text = text.replace("def register_resolution_hook(", "def register_another_hook(", 1)
            archive.writestr(str(path.relative_to(root)), text)
    return file


def test_a_changed_wheel(wheel):
    status, out, _ = drift("--check", wheel, "--json")
    found = states(out)
    assert status == 1
    changed = [t for t in json.loads(out)["targets"] if t["state"] == "changed"]
    assert [(t["patch"], t["target"].rpartition(".")[2]) for t in changed] == [("mxfp4_nextn", "get_quant_method")]
    assert "+" in changed[0]["diff"]
    assert "assert prefix" in changed[0]["diff"]
    assert found["register_resolution_hook"]["state"] == "gone"
    assert json.loads(out)["seams"] == ["sglang.srt.arg_groups.resolution_hooks.register_another_hook"]
    assert "A patch can retire when:" in drift("--check", wheel)[1]


def test_registrations_of_an_older_step(release_tree):
    release_tree("0.5.18")
    _, out, _ = drift("--basis", "0.5.18", "--check", release_tree("0.5.19"), "--json")
    assert "sglang.srt.layers.moe.utils.register_moe_runner_backend_name" in json.loads(out)["seams"]


def test_nothing_to_look_at(tmp_path):
    status, _, said = drift("--check", tmp_path / "nothing")
    assert status == 2
    assert "nothing" in said
    assert "Traceback" not in said
