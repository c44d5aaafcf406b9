"""What `register()` does on simulated GPUs with an edited SGLang; forks for each scenario, before SGLang is imported.

Reads [{"tree", "arch", "env"}]; prints [{"stopped", "states", "imported", "cuda", "logged", "cost"}]: the message that
ended the launch (None if it goes on), each patch's status, how many of SGLang's modules were imported, whether the GPU
was touched through torch, what was logged, and what it took beside parsing the files of all targets.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from sglang_sm120 import plugin
from sglang_sm120.commands.plan import simulate
from sglang_sm120.patches import PATCHES
from sglang_sm120.patching import records
from sglang_sm120.upstream import contracts, releases


def register(scenario: dict[str, Any]) -> dict[str, Any]:
    """One process's life up to the end of plugin loading."""
    sys.path.insert(0, scenario["tree"])
    os.environ.update(scenario.get("env", {}))
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("sglang_sm120").addHandler(handler)
    simulate.install(scenario["arch"], memory_gib=96)
    touched: list[str] = []
    for name in ("get_device_capability", "get_device_properties", "set_device", "mem_get_info", "_lazy_init"):
        setattr(torch.cuda, name, lambda *_a, _name=name, **_k: touched.append(_name))
    parse, parsed = ast.parse, []
    ast.parse = lambda source, *a, **k: parsed.append(len(source)) or parse(source, *a, **k)  # type: ignore
    before = time.process_time()
    try:
        plugin.register()
        stopped = None
    except SystemExit as error:
        stopped = str(error)
    cost = {"seconds": time.process_time() - before, "parsed": sum(parsed)}
    ast.parse = parse
    states = {state.name: [str(state.status), state.reason] for state in records.STATES.values()}
    imported = len([m for m in sys.modules if m.split(".")[0] == "sglang"])
    answer = {"stopped": stopped, "states": states, "imported": imported, "cuda": touched, "logged": logged}
    return answer | {"cost": cost | _cost_of_parsing_all() if scenario.get("cost") else None}


def _cost_of_parsing_all() -> dict[str, Any]:
    """Characters of the files of the release's targets, and CPU seconds to parse each once, in this same process."""
    release = str(releases.installed())
    modules = {t.module for p in PATCHES for t in p.targets if release in t.fingerprints}
    files = [path for module in sorted(modules) if (path := contracts.source_file(module)) is not None]
    before = time.process_time()
    trees = [ast.parse(Path(file).read_text(encoding="utf-8")) for file in files]  # kept, as a cache would
    seconds = time.process_time() - before
    return {"all_seconds": seconds, "all": sum(len(f.read_text(encoding="utf-8")) for f in files), "files": len(trees)}


def main() -> None:
    """All scenarios, each in a child."""
    answers = []
    for scenario in json.load(sys.stdin):
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            os.close(read_end)
            with os.fdopen(write_end, "w") as pipe:
                json.dump(register(scenario), pipe)
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            answers.append(json.loads(pipe.read()))
        os.wait()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
