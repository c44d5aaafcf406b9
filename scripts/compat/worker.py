"""Answers many launches from one import of SGLang: forks a child for each, after importing what all of them need.

    python worker.py --arch sm120 < scenarios.json > answers.json

A scenario is {"id", "model", "flags", "env"}; the answer is `plan`'s document for it, with the real SGLang on
PYTHONPATH resolving the flags and building its MoE layers on simulated GPUs. The plugin is loaded in the child, through
SGLang's own entry point, so one import serves stock and overlay; `SGLANG_PLUGINS=__none__` in `env` is stock.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import Any

from sglang_sm120 import __version__
from sglang_sm120.commands.plan import child as plan_child
from sglang_sm120.commands.plan import document, judge, simulate
from sglang_sm120.commands.plan.document import Plan, Request
from sglang_sm120.upstream import releases


def warm_up() -> None:
    """Import what a scheduler has imported when it loads plugins, and the models."""
    import sglang.srt.layers.moe.fused_moe_triton
    import sglang.srt.layers.quantization.modelopt_quant
    import sglang.srt.model_loader.loader
    import sglang.srt.models.deepseek_v4_nextn
    import sglang.srt.server_args

    with contextlib.suppress(ImportError):  # from SGLang 0.5.16
        import sglang.srt.models.deepseek_v4_dspark  # noqa: F401


def answer(scenario: dict[str, Any], arch: str) -> dict[str, Any]:
    """One launch, in this process."""
    os.environ.update(scenario.get("env", {}))
    stock = os.environ.get("SGLANG_PLUGINS") == "__none__"
    request = Request(model=scenario["model"], flags=tuple(scenario["flags"]), arch=arch)
    plan = Plan(sglang=releases.installed(), overlay=__version__, arch=arch, simulated=True, stock=stock)
    return document.to_json(judge.judged(plan, plan_child.decide(request)))


def fork(scenario: dict[str, Any], arch: str) -> dict[str, Any]:
    """One launch, in a child process."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        found = answer(scenario, arch)
        with os.fdopen(write_end, "w") as pipe:
            json.dump(found, pipe)
        sys.stderr.flush()
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    died = {
        "errors": ["the process ended without an answer"],
        "target": None,
        "draft": None,
        "warnings": [],
        "patches": [],
    }
    return {"id": scenario["id"], **(json.loads(text) if text else died)}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=simulate.SIMULATED, required=True)
    arch = parser.parse_args().arch
    answers_to = os.dup(1)
    os.dup2(2, 1)  # whatever SGLang prints must not mix with the answers
    scenarios = json.load(sys.stdin)
    simulate.install(arch, memory_gib=96)
    warm_up()
    answers = [fork(scenario, arch) for scenario in scenarios]
    with os.fdopen(answers_to, "w") as out:
        json.dump(answers, out)
    sys.stderr.flush()
    os._exit(0)  # SGLang leaves threads behind


if __name__ == "__main__":
    sys.exit(main())
