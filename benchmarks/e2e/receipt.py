"""Make a receipt of a run: its result with each server's log cut to the lines that tell the story.

    python benchmarks/e2e/receipt.py DIR benchmarks/receipts/e2e/NAME.json [--note TEXT ...]

DIR is `run.py`'s output. Paths of the machine are replaced by names, so that a receipt says what ran, not where.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.e2e.servers.launches import COMMON

# What a log is read for, in the order in which SGLang writes it.
_TELLING = re.compile(
    r"sglang-sm120|MoE (?:target|draft):|runs the (?:target|draft)'s experts|Shuffling FP4|Preparing MXFP4"
    r"|hybrid FP8\+NVFP4|Load weight end|warm-up|compiled \d+ kernels|Capture .* end|fired up"
    r"|not found in params_dict|not initialized from"
)
_EXCEPTION = re.compile(r"^(?:\[[^]]*\] )?(?:[\w.]+\.)?(\w*(?:Error|Exception|SystemExit)): ")
_FRAME = re.compile(r'^ +File "(?!.*/torch/)')
_PROGRESS = re.compile(r"^.*it/s\](?=\[)")
_STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d)[^]]*\] ")
_TIME = re.compile(r"^\[[\d:]+\] ")
_PATHS = (
    (re.compile(r"[\w./+-]*/site-packages/"), ""),
    (re.compile(r"/[\w./+-]*/(?=(?:sglang|flashinfer|torch|triton|tilelang|sglang_sm120)/)"), ""),
    (re.compile(r"/[\w./+-]*/(?=(?:hybrid-nvfp4|mxfp4|fp8)-(?:\d|dspark|cast|corrupt|missing)|model-\w)"), "MODELS/"),
    (re.compile(r"/[\w./+-]*/(?=sm120_code_plugin)"), "benchmarks/e2e/"),
    (re.compile(r"/[\w./+-]*/full(?=[/'\"]|$)"), "FULL"),
    (re.compile(r"/[\w./+-]*/python3?(?:\.\d+)?(?= )|^/\S*/python3?(?:\.\d+)?$"), "python"),
)
_WIDTH, _FRAMES = 900, 6


def clean(line: str) -> str:
    """The line without dates, control characters, progress bars and this machine's paths."""
    line = _PROGRESS.sub("", re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip()))
    line = _STAMP.sub(r"[\1] ", line)
    for pattern, name in _PATHS:
        line = pattern.sub(name, line)
    return line[:_WIDTH]


def trim(text: str) -> list[str]:
    """The telling lines, each once, then the first exception with its innermost frames, and what others there are."""
    lines = text.splitlines()
    kept: dict[str, str] = {}  # without the time of day -> with it
    for line in (clean(line) for line in lines if _TELLING.search(line) and "server_args=" not in line):
        kept.setdefault(_TIME.sub("", line), line)
    ends = [i for i, line in enumerate(lines) if _EXCEPTION.match(line)]
    if not ends:
        return list(kept.values())
    frames = [i for i in range(max(0, ends[0] - 200), ends[0]) if _FRAME.match(lines[i])][-_FRAMES:]
    trace = [clean(lines[j]) for i in frames for j in (i, i + 1)]
    return [*kept.values(), *trace, *dict.fromkeys(clean(lines[i]) for i in ends)]


def make(directory: Path, notes: list[str]) -> dict[str, Any]:
    """The receipt of a run."""
    document = json.loads((directory / "result.json").read_text())
    for server in document["servers"].values():
        log = directory / server["log"]
        text = log.read_text(errors="replace") if log.is_file() else ""
        server["log_lines"], server["log"] = len(text.splitlines()), trim(text)
        server["command"] = ["python" if i == 0 else clean(word) for i, word in enumerate(server["command"])]
        server["env"] = {name: clean(value) for name, value in server["env"].items()}
        if server.get("said"):
            server["said"] = clean(server["said"])
        if "verify" in server:
            server["verify"] = json.loads(re.sub(r"http://127\.0\.0\.1:\d+", "URL", json.dumps(server["verify"])))
        for step in server.get("updates", []):
            step["message"] = clean(step["message"])
    return document | {"common_flags": COMMON, "notes": notes}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("receipt", type=Path)
    parser.add_argument("--note", action="append", default=[], help="a sentence that the figures need")
    a = parser.parse_args()
    a.receipt.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(make(a.directory, a.note), indent=1)
    text = re.sub(r"\[\s+((?:-?[\d.e-]+,?\s*)+)\]", lambda m: "[" + " ".join(m[1].split()) + "]", text)
    a.receipt.write_text(text + "\n")
    print(f"{a.receipt}: {len(text) / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
