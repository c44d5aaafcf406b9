"""Register `sm120_triton` as a MoE runner, through SGLang's own registries."""

from __future__ import annotations

from types import ModuleType

from sglang_sm120 import imports, sglang_api
from sglang_sm120.contracts import Target
from sglang_sm120.patching import Patch
from sglang_sm120.settings import RUNNER, Settings

_UTILS = "sglang.srt.layers.moe.utils"


def install(_settings: Settings) -> str:
    """Extend the flags' choices now, and the runner names once SGLang imports the module that holds them."""
    sglang_api.register_runner_name(RUNNER)
    imports.when_imported(_UTILS, _adopt)
    return f"--moe-runner-backend and --speculative-moe-runner-backend take {RUNNER}"


def _adopt(utils: ModuleType) -> None:
    utils.register_moe_runner_backend_name(RUNNER)


PATCH = Patch(
    name="runner_name",
    summary=f"`{RUNNER}` is a MoE runner that both runner flags accept",
    symptom=f"`argument --moe-runner-backend: invalid choice: '{RUNNER}'`",
    targets=(Target(_UTILS, "register_moe_runner_backend_name", {"0.5.23": "c89636b0d185"}),),
    why="a registration through SGLang's public functions; nothing is replaced",
    binding="argparse keeps the list object that `add_moe_runner_backend_choices` extends",
    untouched="every other runner",
    remove_when=f"SGLang has a runner of its own for MXFP4 experts on SM120 at any shape, and `{RUNNER}` is withdrawn",
    install=install,
)
