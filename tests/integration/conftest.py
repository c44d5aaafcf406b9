"""Checkpoints and simulated launches for the tests that import SGLang."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPTS = HERE.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

EAGLE = ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "1"]
EAGLE += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "2"]


def environment(**extra):
    """This process's environment without settings of SGLang or the overlay."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith("SGLANG_") or k == "SGLANG_SM120_HOME"}
    return keep | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"} | extra


def run(*arguments, env=None, timeout=300, **options):
    """A command's outcome as text."""
    return subprocess.run(
        [str(a) for a in arguments], env=env or environment(), capture_output=True, text=True, timeout=timeout,
        check=False, **options,
    )  # fmt: skip


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """name -> directory of a small checkpoint."""
    import tiny_checkpoint

    root = tmp_path_factory.mktemp("checkpoints")
    made = {
        "hybrid": tiny_checkpoint.write(root / "hybrid"),
        "wide": tiny_checkpoint.write(root / "wide", tiny_checkpoint.Shape(hidden=512, intermediate=2304 // 4)),
    }
    return made


@pytest.fixture(scope="session")
def probe():
    """(arch, launches) -> answers, one import of SGLang for all of them."""

    def ask(arch, launches, **more):
        request = json.dumps({"arch": arch, "launches": launches, **more})
        done = run(sys.executable, HERE / "probe.py", input=request)
        assert done.stdout, done.stderr[-4000:]
        return json.loads(done.stdout)

    return ask
