"""What `register()` does on simulated GPUs with an edited SGLang; forks for each scenario, before SGLang is imported.

Reads [{"tree", "arch", "env"}]; prints [{"stopped", "states", "imported", "cuda", "logged"}]: the message that ended
the launch (None if it goes on), each patch's status, how many of SGLang's modules were imported, whether the GPU was
touched through torch, and what was logged.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import torch

from sglang_sm120 import patching, plugin, simulate


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
    try:
        plugin.register()
        stopped = None
    except SystemExit as error:
        stopped = str(error)
    states = {state.name: [str(state.status), state.reason] for state in patching.STATES.values()}
    imported = len([m for m in sys.modules if m.split(".")[0] == "sglang"])
    return {"stopped": stopped, "states": states, "imported": imported, "cuda": touched, "logged": logged}


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
