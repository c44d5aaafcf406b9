"""Every way in which SGLang fills, rewrites, moves or exports the weights of a layer, and what the overlay makes of it.

Data, read by the gate of a launch, by the tests and by the generator of docs/UPDATES.md. Imports nothing of SGLang.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_sm120.upstream import releases


@dataclass(frozen=True)
class Path:
    """One way of writing weights.

    Attributes:
        name: what a user calls it.
        calls: release -> what SGLang calls, in order.
        ours: release -> what the overlay does there.
    """

    name: str
    calls: Mapping[str, str]
    ours: Mapping[str, str]


_LEDGER = "the first tensor of a layer restores it"
_SESSION = "begin: restore; end: prepare"
_AFTER = f"{_LEDGER}; `weight_updates` prepares after each request"

PATHS = (
    Path(
        "start of the server, `--load-format` of the table below",
        releases.spans({"0.5.14": "model.load_weights, process"}),
        releases.spans({"0.5.14": "checks that every tensor arrived, prepares"}),
    ),
    Path(
        "start with `--load-format dummy`, then any update",
        releases.spans({"0.5.14": "initialize_dummy_weights, process; then the update's row"}),
        releases.spans({"0.5.14": "dummy scales once, wide-range kernel; later tensors stay as they arrive"}),
    ),
    Path(
        "`update_weights_from_disk`",
        releases.spans(
            {"0.5.14": "model.load_weights, process", "0.5.23": "restore, model.load_weights, process"},
        ),
        releases.spans({"0.5.14": f"{_LEDGER}; process prepares", "0.5.23": "restore; process prepares"}),
    ),
    Path(
        "`update_weights_from_tensor` (also `flattened_bucket`)",
        releases.spans({"0.5.14": "model.load_weights", "0.5.21": "begin: restore; model.load_weights; end: process"}),
        releases.spans({"0.5.14": _AFTER, "0.5.21": _SESSION}),
    ),
    Path(
        '`update_weights_from_tensor`, `load_format="direct"` or a custom loader',
        releases.spans({"0.5.14": "param.data.copy_", "0.5.21": "begin: restore; param.data.copy_; end: process"}),
        releases.spans({"0.5.14": "`weight_updates` restores before and prepares after", "0.5.21": _SESSION}),
    ),
    Path(
        "`update_weights_from_distributed` (also `flattened_bucket`)",
        releases.spans({"0.5.14": "model.load_weights", "0.5.21": "begin: restore; model.load_weights; end: process"}),
        releases.spans({"0.5.14": _AFTER, "0.5.21": _SESSION}),
    ),
    Path(
        "P2P or RDMA into the parameters",
        releases.spans({"0.5.21": "begin: restore; nothing; end: post_load_weights, process"}),
        releases.spans({"0.5.21": _SESSION}),
    ),
    Path(
        "`update_weights_from_ipc` (checkpoint-engine)",
        releases.spans({"0.5.14": "model.load_weights, process; exceptions of process are swallowed"}),
        releases.spans({"0.5.14": f"{_LEDGER}; `weight_updates` prepares what is left, so that a refusal is heard"}),
    ),
    Path(
        "`release_memory_occupation`, `resume_memory_occupation`",
        releases.spans({"0.5.14": "weights lose their bytes and keep their addresses"}),
        releases.spans(
            {
                "0.5.14": "nothing beside the parameters is kept on the GPU; an update follows (wide-range kernel)",
                "0.5.21": "nothing beside the parameters is kept on the GPU; an update follows",
            }
        ),
    ),
    Path(
        "EPLB, `--ep-num-redundant-experts`",
        releases.spans({"0.5.14": "experts are copied between ranks, in place"}),
        releases.spans({"0.5.14": "each expert is prepared by itself, so a copy is right; wide-range kernel"}),
    ),
    Path(
        "`save_sharded_model`, `save_remote_model`",
        releases.spans({"0.5.14": "model.state_dict"}),
        releases.spans({"0.5.14": "refused by name: the kernel's layout is no checkpoint"}),
    ),
)

_THROUGH = "goes through each parameter's weight_loader"
_AFTERWARDS = "writes parameters after they were prepared"
# `--load-format` -> (whether sm120_triton takes it, why).
LOAD_FORMATS: dict[str, tuple[bool, str]] = {
    **dict.fromkeys(("auto", "safetensors", "pt", "npcache", "mistral"), (True, _THROUGH)),
    **dict.fromkeys(("fastsafetensors", "instanttensor", "runai_streamer"), (True, _THROUGH)),
    "dummy": (True, "leaves codes as they are; scales become 2^-12"),
    "sharded_state": (False, _AFTERWARDS),
    "presharded": (False, "keeps prepared parameters in files under checkpoint names"),
    "remote": (False, _AFTERWARDS),
    "remote_instance": (False, _AFTERWARDS),
    "ipc_cache": (False, "shares parameters with a process that loads no plugins"),
    **dict.fromkeys(("rdma", "jax", "local_cached"), (False, "has no loader in SGLang")),
    "private": (False, "has a loader that is not published"),
    "layered": (False, "makes new parameters without the attributes of ours"),
    "flash_rl": (False, "quantizes to FP8 and exchanges the parameters' storage"),
    "expert_pack": (False, "exchanges the parameters' storage"),
    "gguf": (False, "reads GGUF files"),
    "bitsandbytes": (False, "quantizes to bitsandbytes"),
}


@dataclass(frozen=True)
class Flag:
    """A flag with which SGLang moves, shares or wraps expert parameters in a way that sm120_triton cannot follow.

    Attributes:
        name: as given on the command line.
        is_used: asked of the flags as resolved.
        why: what SGLang does then.
        target_only: the draft's layers are not touched.
    """

    name: str
    is_used: Callable[[Any], bool]
    why: str
    target_only: bool = False


def _lora_on_experts(view: Any) -> bool:
    """SGLang wraps routed experts if both names are among the modules; without a list the adapters decide."""
    if not (getattr(view, "enable_lora", None) or getattr(view, "lora_paths", None)):
        return False
    modules = set(getattr(view, "lora_target_modules", None) or {"all"})
    return "all" in modules or {"gate_up_proj", "down_proj"} <= modules or bool(modules & {"gate_proj", "up_proj"})


_START_SEED = "remote_instance_weight_loader_start_seed_via_transfer_engine"

FLAGS = (
    Flag("--cpu-offload-gb", lambda v: (getattr(v, "cpu_offload_gb", 0) or 0) > 0, "moves parameters to host memory"),
    Flag(
        "--offload-group-size",
        lambda v: (getattr(v, "offload_group_size", -1) or 0) > 0,
        "moves parameters to host memory",
    ),
    Flag("--kt-weight-path", lambda v: bool(getattr(v, "kt_weight_path", None)), "runs experts on the CPU"),
    Flag(
        "--weight-cache-mode",
        lambda v: getattr(v, "weight_cache_mode", "off") not in (None, "off"),
        "shares parameters with a process that loads no plugins",
    ),
    Flag(
        "--startup-weight-load-mode",
        lambda v: getattr(v, "startup_weight_load_mode", None) == "overlap",
        "has parameters prepared before their bytes arrive",
    ),
    Flag(
        "--" + _START_SEED.replace("_", "-"),
        lambda v: bool(getattr(v, _START_SEED, False)),
        "hands prepared parameters to other servers",
    ),
    Flag("--enable-lora", _lora_on_experts, "wraps routed experts (--lora-target-modules can leave them out)", True),
)


def load_format_problem(load_format: Any) -> str | None:
    """Why sm120_triton does not take a load format, given as SGLang has it; None where it does.

    A format that is not listed is new, and nobody has looked at what it does.
    """
    name = str(getattr(load_format, "value", load_format))
    works, why = LOAD_FORMATS.get(name, (False, "is not among the load formats that were looked at"))
    return None if works else why
