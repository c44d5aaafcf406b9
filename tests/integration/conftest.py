"""Checkpoints and simulated launches for the tests that import SGLang."""

import json
import sys
from dataclasses import replace

import pytest
from helpers import CHILDREN, run

from scripts.checkpoints import tiny


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """name -> directory of a small checkpoint."""
    root = tmp_path_factory.mktemp("checkpoints")
    made = {
        "hybrid": tiny.write(root / "hybrid"),
        "native": tiny.write(root / "native", replace(tiny.SHAPE, kind="mxfp4")),
        "wide": tiny.write(root / "wide", replace(tiny.SHAPE, intermediate=2304 // 4)),
    }
    return made


@pytest.fixture(scope="session")
def probe():
    """(arch, launches) -> answers, one import of SGLang for all of them."""

    def ask(arch, launches, **more):
        request = json.dumps({"arch": arch, "launches": launches, **more})
        done = run(sys.executable, CHILDREN / "probe.py", input=request)
        assert done.stdout, done.stderr[-4000:]
        return json.loads(done.stdout)

    return ask
