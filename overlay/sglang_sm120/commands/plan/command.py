"""`sglang-sm120 plan`: which MoE kernels a launch would run, decided by the installed SGLang.

The checkpoint's facts are read here; everything else is asked of SGLang in a child process (`plan_child`), because the
GPU is simulated there and SGLang keeps what it has seen.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from sglang_sm120 import __version__, gpu, settings
from sglang_sm120.checkpoint import inspection, memory
from sglang_sm120.checkpoint.inspection import CheckpointError
from sglang_sm120.commands.plan.simulate import SIMULATED
from sglang_sm120.moe import known_kernels, runners
from sglang_sm120.upstream import releases

SCHEMA = 1
TIMEOUT_S = 300
_SWITCH = {"target": ("deepseek_v4_gate", runners.TARGET_FLAG), "draft": ("mxfp4_nextn", runners.DRAFT_FLAG)}


def make(
    model: Path, flags: list[str], arch: str | None = None, memory_gib: int = 96, stock: bool = False
) -> dict[str, Any]:
    """The plan as a document.

    Args:
        model: checkpoint directory.
        flags: SGLang server flags, without the model.
        arch: `sm120`, `sm121`, `sm100` or `sm90`; this machine's GPU, else `sm120`, if None.
        memory_gib: memory of each simulated GPU.
        stock: leave the overlay out.

    Returns:
        The document of the interface contract (`schema` 1). A launch that would fail has non-empty `errors`.
    """
    present = gpu.detect()
    arch = arch or (present.arch if present and present.arch in SIMULATED else "sm120")
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "sglang": releases.installed(),
        "overlay": __version__,
        "arch": arch,
        "simulated": present is None or present.arch != arch,
        "stock": stock,
        "checkpoint": None,
        "target": None,
        "draft": None,
        "memory": None,
        "patches": [],
        "warnings": [],
        "errors": [],
    }
    try:
        facts = inspection.inspect(model)
    except CheckpointError as error:
        document["errors"].append(str(error))
        return document
    document["checkpoint"] = {k: v for k, v in asdict(facts).items() if k != "problems"}
    document["errors"] += [f"{model}: {problem}" for problem in facts.problems]
    if facts.problems:
        return document
    if document["sglang"] is None:
        document["errors"].append("SGLang is not installed beside sglang-sm120; install it first: pip install sglang")
    elif not facts.is_deepseek_v4:
        document["warnings"].append(
            f"{model / 'config.json'}: not a DeepSeek-V4 checkpoint; the overlay leaves it alone"
        )
    elif any(flag.split("=")[0] in ("--model-path", "--model") for flag in flags):
        document["errors"].append("--model-path after -- names a second model; plan takes the one of --model")
    else:
        assumed = os.environ.get(settings.ASSUME.name)
        if assumed and assumed != arch:
            document["warnings"].append(
                f"{settings.ASSUME.name}={assumed} routes MoE layers, whatever --arch {arch} says"
            )
        parallel = _ask_sglang(document, model, flags, arch, memory_gib)
        _judge(document)
        _weigh(document, model, memory_gib, parallel)
    return document


def _ask_sglang(
    document: dict[str, Any], model: Path, flags: list[str], arch: str, memory_gib: int
) -> dict[str, Any] | None:
    """Fill the document from the child's answer; returns the parallel sizes if SGLang resolved the flags."""
    environment = dict(os.environ)
    if document["stock"]:
        environment[settings.OFF.name] = "0"
    request = {"model": str(model), "flags": flags, "arch": arch, "memory_gib": memory_gib}
    try:
        child = subprocess.run(
            [sys.executable, "-m", "sglang_sm120.commands.plan.child"],
            input=json.dumps(request),
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            # Until plan_child takes the signal itself, Ctrl-C is this process's business, which then kills the child.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        document["errors"].append(f"SGLang did not resolve the launch within {TIMEOUT_S} s; try on an idle machine")
        return None
    try:
        answer = json.loads(child.stdout)
    except ValueError:
        document["errors"].append(
            f"SGLang ended (status {child.returncode}) without an answer; its messages are on stderr"
        )
        return None
    for key in ("target", "draft", "patches"):
        document[key] = answer[key]
    document["warnings"] += answer["warnings"]
    document["errors"] += answer["errors"]
    filtered = environment.get("SGLANG_PLUGINS")
    if not document["stock"] and not answer["patches"] and filtered:
        document["warnings"].append(f"SGLANG_PLUGINS={filtered} leaves sm120 out: this is stock SGLang")
    return answer["parallel"]


def _weigh(document: dict[str, Any], model: Path, memory_gib: int, parallel: dict[str, Any] | None) -> None:
    """Weights of each GPU against its memory; more than it has is an error."""
    weights = memory.weigh(model) if parallel else None
    if weights is None or parallel is None:
        return
    tp, pp, draft = parallel["tp_size"], parallel["pp_size"], bool(parallel["speculative_algorithm"])
    fraction = parallel["mem_fraction_static"] or 1.0  # unset where SGLang leaves it to the GPU that it finds
    document["memory"] = found = memory.budget(weights, memory_gib, tp, pp, draft, fraction)
    if not found["fits"]:
        document["errors"].append(
            f"memory: the weights take at least {found['weights_gib_least']} GiB of each GPU, and SGLang has "
            f"{found['static_gib']} of its {memory_gib} GiB for weights and KV cache; raise --tp (it is {tp})"
        )


def _judge(document: dict[str, Any]) -> None:
    """Name each layer's kernel, and add an error where the architecture has none."""
    major = gpu.capability_of(document["arch"])[0]
    for role in ("target", "draft"):
        part = document[role]
        if part is None:
            continue
        packed = part.pop("packed")
        kernel = known_kernels.lookup(part["method"], part["runner"])
        part["kernel"] = kernel.name if kernel else f"{part['method']} on {part['runner']}"
        fault = known_kernels.fault(part["method"], part["runner"], major, packed)
        if kernel is None and not fault:
            document["warnings"].append(
                f"{role}: {part['kernel']} is not known to sglang-sm120; whether {document['arch']} has it is not known"
            )
        for found in ([fault] if fault else []) + part.pop("faults"):
            document["errors"].append(f"{role}: {found}. {_remedy(role, document)}")


def _remedy(role: str, document: dict[str, Any]) -> str:
    patch, flag = _SWITCH[role]
    states = {p["name"]: p for p in document["patches"]}
    hybrid = (document.get("checkpoint") or {}).get("kind") == "hybrid-nvfp4"
    works = known_kernels.offered("nvfp4") if hybrid else known_kernels.offered("mxfp4")[:2]
    # Stock SGLang asks no flag for the draft of a hybrid checkpoint.
    no_flag = role == "draft" and hybrid
    otherwise = "" if no_flag else f"; or pass {flag} {' or '.join(works)}"
    if document["stock"] or not document["patches"]:
        return f"The overlay changes this ({patch}, {flag}){otherwise}"
    if patch in states and states[patch]["status"] == "not applicable":
        return f"Patch {patch} is out ({states[patch]['reason']}){otherwise}"
    return f"Pass another {flag}, or leave it out"


def _sizes(facts: dict[str, Any]) -> str:
    """What the configuration says of a routed MoE layer; nothing of a checkpoint that is not DeepSeek-V4's."""
    known = {
        "experts": f"{facts['experts']} experts",
        "top_k": f"top {facts['top_k']}",
        "hidden_size": f"hidden {facts['hidden_size']}",
        "moe_intermediate_size": f"intermediate {facts['moe_intermediate_size']}",
        "swiglu_limit": f"clamp {facts['swiglu_limit']}",
    }
    said = [text for name, text in known.items() if facts[name] is not None]
    return f": {', '.join(said)}" if said else ""


def render(document: dict[str, Any]) -> str:
    """The plan for people, at most 100 columns wide where the reasons allow."""
    lines = [
        f"SGLang {document['sglang'] or 'not installed'}, sglang-sm120 {document['overlay']}"
        f"{' (left out: --stock)' if document['stock'] else ''}, {document['arch']}"
        f"{' (simulated)' if document['simulated'] else ''}"
    ]
    facts = document["checkpoint"]
    if facts:
        lines.append(f"checkpoint  {facts['kind']}{_sizes(facts)}")
    for role in ("target", "draft"):
        part = document[role]
        if part:
            who = part["changed_by"] or "SGLang"
            name = f"{role} ({part['algorithm']})" if role == "draft" else role
            lines.append(f"{name:<15} {part['kernel']}: runner {part['runner']}, method {part['method']}")
            lines.append(f"{'':<15} by {who}: {part['reason']}")
    if document["memory"]:
        m = document["memory"]
        span = f"{m['weights_gib_least']} to {m['weights_gib_most']}"
        lines.append(
            f"{'memory':<15} weights take {span} GiB of each GPU; SGLang has {m['static_gib']} of its "
            f"{m['gpu_memory_gib']} GiB for them and the KV cache"
        )
    lines += [f"patch           {p['name']}: {p['status']} ({p['reason']})" for p in document["patches"]]
    lines += [f"warning         {w}" for w in document["warnings"]]
    lines += [f"ERROR           {e}" for e in document["errors"]]
    known = all("not known" not in w for w in document["warnings"])
    if not document["errors"] and document["target"] and known:
        lines.append("This launch has a kernel for every MoE layer.")
    return "\n".join(lines)
