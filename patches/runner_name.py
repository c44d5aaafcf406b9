"""Register `sm120_triton` as a MoE runner, through SGLang's own registries."""

from __future__ import annotations

from types import ModuleType

from sglang_sm120.patching import on_import
from sglang_sm120.patching.records import Patch, Status
from sglang_sm120.settings import DRAFT_MOE, RUNNER, TARGET_MOE, Settings
from sglang_sm120.upstream import releases, server_flags
from sglang_sm120.upstream.contracts import Target

_UTILS, _ARGS = "sglang.srt.layers.moe.utils", "sglang.srt.server_args"


def install(_settings: Settings) -> str:
    """Extend the flags' choices and the runner names, each once SGLang imports the module that holds them."""
    on_import.when_imported(_ARGS, lambda _module: server_flags.register_runner_name(RUNNER))
    on_import.when_imported(_UTILS, _adopt)
    return f"--moe-runner-backend and --speculative-moe-runner-backend take {RUNNER}"


def _adopt(utils: ModuleType) -> None:
    utils.register_moe_runner_backend_name(RUNNER)


PATCH = Patch(
    name="runner_name",
    summary=f"`{RUNNER}` is a MoE runner that both runner flags accept",
    symptom=f"`argument --moe-runner-backend: invalid choice: '{RUNNER}'`",
    targets=(Target(_UTILS, "register_moe_runner_backend_name", releases.spans({"0.5.19": "c89636b0d185"})),),
    proven_on=releases.span("0.5.19"),
    elsewhere=(
        Status.NOT_APPLICABLE,
        f"this SGLang's flags take built-in runners only; set {TARGET_MOE.name} or {DRAFT_MOE.name} instead",
    ),
    why="a registration through SGLang's public functions; nothing is replaced",
    binding="argparse keeps the list object that `add_moe_runner_backend_choices` extends",
    untouched="every other runner",
    remove_when=f"SGLang has a runner of its own for MXFP4 experts on SM120 at any shape, and `{RUNNER}` is withdrawn",
    install=install,
)
