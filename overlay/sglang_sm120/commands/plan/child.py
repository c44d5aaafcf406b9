"""The process behind `plan`: real SGLang resolves a launch on simulated GPUs and builds one MoE layer of each kind.

Reads a request as JSON on stdin and writes the answer as JSON to its original stdout; whatever SGLang prints goes to
stderr. The steps are those of a launch, in its order: load plugins, parse, resolve and check the flags, publish them as
a scheduler does, let SGLang's loader build the quantization config, and construct SGLang's own `FusedMoE` with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import re
import signal
import sys
import traceback
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from sglang_sm120 import files, settings
from sglang_sm120.commands.plan import flag_values, ineffective_settings, layer_faults, one_rank, simulate
from sglang_sm120.moe import decisions, known_kernels
from sglang_sm120.patching import records
from sglang_sm120.settings import RUNNER
from sglang_sm120.upstream import server_flags, shadowed

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def decide(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request; problems end up in `errors`."""
    answer: dict[str, Any] = {"target": None, "draft": None, "parallel": None, "errors": [], "warnings": []}
    try:
        _steps(request, answer)
    except flag_values.ImpossibleFlagsError as error:
        answer["errors"] += error.faults
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever stops the launch is what the user asked about
        answer["errors"].append(_message(error, request["flags"]))
    answer["patches"] = [vars(s) | {"status": str(s.status)} for s in records.STATES.values()]
    return answer


def _steps(request: dict[str, Any], answer: dict[str, Any]) -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    given = ineffective_settings.environment()
    server_args = _resolve(["--model-path", request["model"], *request["flags"]])
    flags = partial(server_flags.resolved, server_args)
    flag_values.require(flags)
    server_args.check_server_args()
    sizes = ("tp_size", "ep_size", "pp_size", "speculative_algorithm", "mem_fraction_static")
    answer["parallel"] = {name: flags(name) for name in sizes}
    one_rank.publish_as_scheduler(server_args)
    shape = _shape(server_flags.model_config(server_args))
    flag_values.require_shares(flags, shape["num_experts"], shape["intermediate_size"])
    answer["errors"] += ineffective_settings.faults(given, server_args)
    if request["arch"] in settings.SM12X:
        kind = server_flags.expert_kind(server_flags.model_config(server_args))
        answer["warnings"] += ineffective_settings.warnings(given, server_args, request["arch"], kind)
    answer["target"] = _target(server_args, answer)
    algorithm = flags("speculative_algorithm")
    if algorithm:
        answer["draft"] = _draft(server_args, algorithm, request)


def _resolve(arguments: list[str]) -> Any:
    """Parse and resolve as the launcher does; argparse's complaint becomes the error."""
    from sglang.srt.server_args import prepare_server_args

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            server_args = prepare_server_args(arguments)
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


def _target(server_args: Any, answer: dict[str, Any]) -> dict[str, Any]:
    model_config = server_flags.model_config(server_args)
    runner = server_flags.resolved(server_args, "moe_runner_backend")
    layers = {i: f"model.layers.{i}.mlp.experts" for i in range(model_config.hf_text_config.num_hidden_layers)}
    shape = _shape(model_config)
    built = _build(model_config, list(layers.values()), shape, nullcontext())
    if not built:
        raise SystemExit("the checkpoint has no layers (config.json: num_hidden_layers)")
    first = built[0]
    others = sorted({b["method"] for b in built} - {first["method"]})
    if others:
        where = [i for i, b in enumerate(built) if b["method"] != first["method"]]
        answer["warnings"].append(f"layers {', '.join(map(str, where))} get {', '.join(others)} instead")
    return _part("target", first, runner)


def _draft(server_args: Any, algorithm: str, request: dict[str, Any]) -> dict[str, Any]:
    path = server_flags.resolved(server_args, "speculative_draft_model_path") or request["model"]
    model_config = server_flags.model_config(server_args, draft_path=path)
    text = model_config.hf_text_config
    shape = _shape(model_config)
    if algorithm == "DSPARK":
        shape["num_experts"] = getattr(text, "dspark_n_routed_experts", None) or shape["num_experts"]
        shape["top_k"] = getattr(text, "dspark_num_experts_per_tok", None) or shape["top_k"]
        prefix, context = "stages.0.mlp.experts", nullcontext()
    else:
        prefix, context = "model.decoder.mlp.experts", one_rank.speculative_context()
    built = _build(model_config, [prefix], shape, context)[0]
    # DSpark runs its draft on the target's runner whatever the draft's flag says, except where a patch decided.
    flag = "moe_runner_backend" if algorithm == "DSPARK" else "speculative_moe_runner_backend"
    decided = built["decided"]
    runner = (decided and decided.runner) or built["runner"] or server_flags.resolved(server_args, flag)
    return {"algorithm": "DSPARK" if algorithm == "DSPARK" else "EAGLE", **_part("draft", built, runner)}


def _shape(model_config: Any) -> dict[str, Any]:
    text = model_config.hf_text_config
    return {
        "num_experts": text.n_routed_experts,
        "hidden_size": text.hidden_size,
        "intermediate_size": text.moe_intermediate_size,
        "top_k": text.num_experts_per_tok,
        "routed_scaling_factor": getattr(text, "routed_scaling_factor", None),
        "swiglu_limit": getattr(text, "swiglu_limit", None),
    }


def _build(
    model_config: Any, prefixes: list[str], shape: dict[str, Any], context: AbstractContextManager[Any]
) -> list[dict[str, Any]]:
    """SGLang's own FusedMoE for each prefix, on the meta device."""
    import torch
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE

    built = []
    config = one_rank.quantization_config(model_config)  # imports the model, which must not land on the meta device
    packed = getattr(config, "is_fp4_experts", False) and not getattr(config, "dequant_fp4_to_fp8", False)
    with context, torch.device("meta"):
        for number, prefix in enumerate(prefixes):
            decisions.forget_dispatch()
            layer = FusedMoE(
                layer_id=number, params_dtype=model_config.dtype, quant_config=config, prefix=prefix, **shape
            )
            built.append(
                {
                    "method": type(layer.quant_method).__name__,
                    "runner": one_rank.runner_of(layer),
                    "packed": bool(packed),
                    "faults": layer_faults.of(layer),
                    "decided": decisions.DECISIONS.get(("dispatch", server_flags.role(prefix))),
                }
            )
    return built


def _part(role: str, built: dict[str, Any], runner: str) -> dict[str, Any]:
    """What the document says of a layer; a method that is not the one decided on is a fault."""
    known = built.pop("decided") or decisions.DECISIONS.get(("resolution", role))
    decided, ours = known.runner if known else None, built["method"] == known_kernels.METHOD
    if decided is not None and (decided == RUNNER) != ours:
        built["faults"].append(
            f"{known.changed_by if known else 'the overlay'} decided on {decided}, and SGLang built {built['method']}: "
            "another plugin has replaced what the patch did; remove it, or load it before sm120"
        )
    changed_by = known.changed_by if known else None
    reason = known.reason if known else "SGLang's own choice"
    return {**built, "runner": RUNNER if ours else runner, "changed_by": changed_by, "reason": reason}


def _message(error: BaseException, flags: list[str]) -> str:
    """The error in one line; where it says nothing of itself, the line of source that raised it."""
    text = " ".join(str(error).removeprefix("sglang-sm120: ").split())
    if isinstance(error, SystemExit) and text not in ("", "0", "None"):
        return text
    if isinstance(error, SystemExit):
        return "these flags make SGLang end without serving"
    home = files.user_home()
    if isinstance(error, OSError) and home is not None and Path(str(error.filename)).is_relative_to(home):
        return (
            f"SGLang cannot use the home directory ({error.filename}: {error.strerror}), where its stack keeps "
            "compiled kernels; set HOME to a directory that can be written"
        )
    if isinstance(error, ImportError) and (error.name or "").startswith("sglang."):
        shadow = shadowed.shadow_of("sglang")
        if shadow is not None:
            return f"{text}: {shadow.says}; {shadow.hint}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}, {frames[-1].line}" if frames else "nowhere"
    if not text or isinstance(error, (AttributeError, IndexError, KeyError, TypeError, ZeroDivisionError)):
        return f"SGLang fails with {type(error).__name__} {text} at {where}; check the flags and config.json"
    return _with_flags(text, flags)


def _with_flags(text: str, flags: list[str]) -> str:
    """SGLang's complaint, where it names neither a flag nor a file, with the flags that it means as they were given.

    Those are the ones whose words stand in it, also in the plural; if none do, all are named.
    """
    if "--" in text or "config.json" in text:
        return text
    given: dict[str, str] = {}  # flag -> as given; SGLang too takes the last of several
    name = ""
    for word in flags:
        if word.startswith("--"):
            name = word.partition("=")[0]
            given[name] = word
        elif name:
            given[name] += f" {word}"
    words = text.lower().replace("_", " ")
    names = {flag: re.escape(flag.strip("-").replace("-", " ")) for flag in given}
    meant = [given[flag] for flag in given if re.search(rf"\b{names[flag]}s?\b", words)] or list(given)
    return f"{text} ({', '.join(meant)})" if meant else text


def main() -> int:
    """Serve one request."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed `plan` leaves nothing behind
    answer_to = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    simulate.install(request["arch"], request["memory_gib"])
    with os.fdopen(answer_to, "w") as out:
        json.dump(decide(request), out)
    sys.stderr.flush()
    os._exit(0)  # SGLang leaves threads behind that would delay the exit


if __name__ == "__main__":
    sys.exit(main())
