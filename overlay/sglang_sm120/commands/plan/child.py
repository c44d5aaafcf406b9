"""The process behind `plan`: real SGLang resolves a launch on simulated GPUs and builds one MoE layer of each kind.

Reads a request as JSON on stdin and writes the answer as JSON to its original stdout; whatever SGLang prints goes to
stderr. The steps are those of a launch, in its order: load plugins, parse, resolve and check the flags, publish them as
a scheduler does, let SGLang's loader build the quantization config, and construct SGLang's own `FusedMoE` with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sglang_sm120 import gpu, settings
from sglang_sm120.commands.plan import (
    checkpoint_faults,
    complaints,
    config_file,
    document,
    flag_values,
    ineffective_settings,
    layers,
    one_rank,
    other_kernels,
    simulate,
)
from sglang_sm120.commands.plan.document import Answer, Layer, OtherKernels, PatchState, Request, Sizes
from sglang_sm120.moe import invariance
from sglang_sm120.patching import records
from sglang_sm120.upstream import server_flags

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass
class _SoFar:
    """What a launch has come to; one that is stopped keeps it. `flags` are those of a `--config` file too."""

    flags: list[str] = field(default_factory=list)
    target: Layer | None = None
    draft: Layer | None = None
    sizes: Sizes | None = None
    others: OtherKernels | None = None
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wants_invariance: bool = False


def decide(request: Request) -> Answer:
    """Answer one request; problems end up in `errors`."""
    found = _SoFar(flags=list(request.flags))
    try:
        _steps(request, found)
    except flag_values.ImpossibleFlagsError as error:
        found.errors += error.faults
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever stops the launch is what the user asked about
        found.errors.append(complaints.message(error, found.flags, request.model))
    return Answer(
        target=found.target,
        draft=found.draft,
        sizes=found.sizes,
        others=found.others,
        patches=tuple(PatchState(name=s.name, status=str(s.status), reason=s.reason) for s in records.STATES.values()),
        warnings=tuple(found.warnings),
        errors=tuple(found.errors),
        wants_invariance=found.wants_invariance,
    )


def _steps(request: Request, found: _SoFar) -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    given = ineffective_settings.environment()
    acts = any(state.status == records.Status.APPLIED for state in records.STATES.values())
    found.wants_invariance = acts and given.get(settings.BATCH_INVARIANT.name, "").strip() == "1"
    found.flags = config_file.expanded(request.flags)
    config_file.require_one_model(request.flags, found.flags, request.model)
    server_args = resolve(["--model-path", request.model, *request.flags])
    flags = partial(server_flags.resolved, server_args)
    flag_values.require(flags)
    server_args.check_server_args()
    if flags("enable_deterministic_inference"):
        found.wants_invariance = True
        found.warnings.append(invariance.ATTENTION)
    found.sizes = Sizes(**{name: flags(name) for name in Sizes.__dataclass_fields__})
    one_rank.publish_as_scheduler(server_args)
    model_config = server_flags.model_config(server_args)
    shape = layers.shape_of(model_config)
    text = model_config.hf_text_config
    algorithm = flags("speculative_algorithm")
    stages = layers.draft_shape(server_args, algorithm, request.model).num_experts if algorithm else None
    flag_values.require_shares(flags, shape.num_experts, shape.intermediate_size, stages)
    heads, width = text.num_attention_heads, text.head_dim
    found.warnings += flag_values.require_attention_shares(flags, heads, width, getattr(text, "o_groups", None))
    found.errors += ineffective_settings.faults(given, server_args)
    if request.arch in settings.SM12X:
        kind = server_flags.expert_kind(model_config)
        found.warnings += ineffective_settings.warnings(given, server_args, request.arch, kind)
        found.others = other_kernels.resolved(flags)
        asked = complaints.as_given(found.flags)
        found.warnings += [f.line for f in other_kernels.findings(flags, asked, text, request.head)]
    if flags("moe_a2a_backend") not in (None, "none"):
        found.warnings.append(
            f"not simulated: the dispatch of --moe-a2a-backend {flags('moe_a2a_backend')} between ranks, its packages "
            "and its memory; layers are shown as they are built"
        )
    states = {name: str(state.status) for name, state in records.STATES.items()}
    found.errors += checkpoint_faults.of(request.model, flags, states)
    found.target, warning = layers.target(server_args)
    found.warnings += [warning] if warning else []
    if algorithm:
        found.draft = layers.draft(server_args, algorithm, request.model)


def resolve(arguments: Sequence[str]) -> Any:
    """Flags parsed and resolved as the launcher does; argparse's complaint becomes the error."""
    from sglang.srt.server_args import prepare_server_args

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            server_args = prepare_server_args(list(arguments))
    except SystemExit as error:
        lines = said.getvalue().strip().splitlines()
        if error.code == 2 and lines:
            raise SystemExit("SGLang refuses the flags: " + lines[-1].partition("error: ")[2]) from None
        raise
    sys.stderr.write(said.getvalue())
    try:
        server_flags.resolve(server_args)
    except (Exception, SystemExit):
        resolved_so_far = server_flags.resolving(server_args)
        flag_values.require(lambda field: getattr(resolved_so_far, field, None))  # where the cause is known, say that
        raise
    return server_args


def _present(arch: str) -> str | None:
    """This machine's GPU, where it is of that architecture or taken for one."""
    here, assumed = gpu.detect(), os.environ.get(settings.ASSUME.name)
    return here.name if here is not None and arch in (here.arch, assumed) else None


def end_with_parent() -> None:
    """A command that is killed leaves no child behind. For a process that does nothing else; Linux."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    """Serve one request."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a group in the background may write to a terminal with `tostop`
    end_with_parent()
    answer_to = os.dup(1)
    os.dup2(2, 1)
    request = document.read_request(sys.stdin.read())
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    simulate.install(request.arch, request.memory_gib, _present(request.arch))
    with os.fdopen(answer_to, "w") as out:
        out.write(document.write(decide(request)))
    sys.stderr.flush()
    os._exit(0)  # SGLang leaves threads behind that would delay the exit


if __name__ == "__main__":
    sys.exit(main())
