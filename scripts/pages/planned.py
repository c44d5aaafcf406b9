"""The output of `sglang-sm120 plan` that README shows: the real command, on a checkpoint of V4-Flash's real sizes.

The checkpoint has headers and no data: its files are holes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
LAYERS = 43  # of V4-Flash
LEFT_OUT = re.compile(r"^patch .*\n", re.M)  # a line for each patch


def command() -> list[str]:
    """What README shows above its output."""
    text = README.read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.search(r"^sglang-sm120 (plan --model \$MODEL .*)$", text, re.M)
    if found is None:
        raise ValueError(f"{README}: no line begins with 'sglang-sm120 plan --model $MODEL'")
    return found[1].split()


def write_flash(directory: Path) -> None:
    """V4-Flash as NVIDIA publishes it, with its draft; 150 GiB of holes and some MB of headers."""
    from scripts.checkpoints import make
    from sglang_sm120.checkpoint import format

    shape = make.Shape(kind="hybrid-nvfp4", layers=LAYERS, experts=256, vocabulary=129280)
    layouts = [{t.name: (t.dtype, t.shape) for t in part} for part in make.shards(shape)]
    for file, layout in zip(format.files(directory, len(layouts)), layouts, strict=True):
        begin = format.header(layout)
        with file.open("wb") as f:
            f.write(begin)
            f.truncate(len(begin) + sum(format.nbytes(*entry) for entry in layout.values()))
    format.describe(directory, shape, layouts)


def output() -> str:
    """The command's output as a fenced block, without its lines on patches."""
    with tempfile.TemporaryDirectory() as directory:
        write_flash(Path(directory))
        words = [directory if word == "$MODEL" else word for word in command()]
        done = subprocess.run(
            [sys.executable, "-m", "sglang_sm120.cli", *words], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise ValueError(f"plan ended with {done.returncode}: {done.stderr[-2000:]}")
    return f"```text\n{LEFT_OUT.sub('', done.stdout).strip()}\n```"
