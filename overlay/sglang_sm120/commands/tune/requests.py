"""What `tune` asks of the process that has one layer on one runner, and the words of its answers.

Questions are lines of JSON on the process's stdin, answers lines on its stdout: any number of `at` (what it is busy
with, so that a process that dies or hangs leaves the place), results, and last `done`, `refused` or `failed`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from sglang_sm120.upstream.server_flags import Role

CHECKED = (1, 2, 3, 6, 16, 64, 256, 1024)  # tokens


@dataclass(frozen=True)
class LayerRequest:
    """A layer to build.

    Attributes:
        model: directory with `config.json` and safetensors headers.
        role: `target` or `draft`.
        runner: to build the layer with.
        tp, ep: parallel sizes; the layer is rank 0's.
        device: `cuda`, or `cpu` for a simulated SM120, which runs our kernel only.
        seed: of the random weights and inputs.
        flags: more flags of SGLang.
    """

    model: str
    role: Role
    runner: str
    tp: int = 1
    ep: int = 1
    device: str = "cuda"
    seed: int = 0
    flags: tuple[str, ...] = field(default_factory=tuple)

    def line(self) -> str:
        return json.dumps(asdict(self))


def read_request(line: str) -> LayerRequest:
    """The inverse of `LayerRequest.line`."""
    found = json.loads(line)
    return LayerRequest(**found | {"flags": tuple(found["flags"])})


def check(tokens: tuple[int, ...] = CHECKED) -> dict[str, Any]:
    """Compare with float64 at these numbers of tokens."""
    return {"do": "check", "tokens": list(tokens)}


def time(tokens: int, samples: int) -> dict[str, Any]:
    """Time so many replays of a CUDA graph."""
    return {"do": "time", "tokens": tokens, "samples": samples}


BANDWIDTH: dict[str, Any] = {"do": "bandwidth"}
