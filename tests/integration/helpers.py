"""Running commands in an environment without settings of SGLang or the overlay."""

import os
import subprocess
import sys
from pathlib import Path

from sglang_sm120.upstream import server_flags

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
CHILDREN = ROOT / "tests" / "children"
COMMAND = Path(sys.executable).with_name("sglang-sm120")

EAGLE = server_flags.eagle()

# Before any test: SGLang, once one imports it, sets where eight libraries keep compiled kernels.
AT_START = dict(os.environ)


def environment(**extra):
    """The environment that the tests were started in, without settings of SGLang or the overlay."""
    keep = {k: v for k, v in AT_START.items() if not k.startswith("SGLANG_") or k == "SGLANG_SM120_HOME"}
    return keep | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"} | extra


def run(*arguments, env=None, timeout=300, **options):
    """A command's outcome as text."""
    return subprocess.run(
        [str(a) for a in arguments], env=env or environment(), capture_output=True, text=True, timeout=timeout,
        check=False, **options,
    )  # fmt: skip
