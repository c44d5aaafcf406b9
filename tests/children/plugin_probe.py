"""Launches beside a second plugin that is loaded after ours, with the release on the path and simulated GPUs.

Reads {"arch", "preload", "model", "flags", "launches": [{"plugin": source or None, "env"}]}; prints a list of what
`commands.plan.child.decide` answers, each with `calls`: how often the other plugin's function ran. The plugin is a
module with the function `register` and a distribution with an entry point, at the end of the path. With `preload`
SGLang's model code is imported before plugins are loaded, as in a scheduler, else after, as in a launcher.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_sm120.commands.plan import child as plan_child
from sglang_sm120.commands.plan import simulate
from sglang_sm120.commands.plan.document import Request

ENTRY = "[sglang.srt.plugins]\nother = other_overlay:register\n"
METADATA = "Metadata-Version: 2.1\nName: other-overlay\nVersion: 1.0\n"


def launch(request: dict[str, Any], plugin: str | None, env: dict[str, str]) -> dict[str, Any]:
    """One launch, up to the layers."""
    os.environ.update(env)
    with tempfile.TemporaryDirectory() as directory:
        if plugin is not None:
            info = Path(directory) / "other_overlay-1.0.dist-info"
            info.mkdir()
            (info / "entry_points.txt").write_text(ENTRY)
            (info / "METADATA").write_text(METADATA)
            (Path(directory) / "other_overlay.py").write_text(plugin)
            sys.path.append(directory)
        asked = Request(model=request["model"], flags=tuple(request["flags"]), arch=request["arch"])
        answer = asdict(plan_child.decide(asked))
    other = sys.modules.get("other_overlay")
    return answer | {"calls": len(other.CALLS) if other else None}


def main() -> None:
    """All launches, each in a child."""
    out = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    simulate.install(request["arch"], 96)
    if request["preload"]:
        import sglang.srt.layers.moe.fused_moe_triton
        import sglang.srt.layers.quantization.modelopt_quant
        import sglang.srt.model_loader.loader
        import sglang.srt.server_args  # noqa: F401
    answers = []
    for one in request["launches"]:
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            os.close(read_end)
            with os.fdopen(write_end, "w") as pipe:
                json.dump(launch(request, one["plugin"], one.get("env", {})), pipe, default=str)
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            answers.append(json.loads(pipe.read()))
        os.wait()
    with os.fdopen(out, "w") as answer_to:
        json.dump(answers, answer_to)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
