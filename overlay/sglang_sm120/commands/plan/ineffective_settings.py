"""Settings of a launch on SM120 that SGLang overrides, or that lead into code that the GPU or this SGLang lacks.

`plan` warns of them, or says that the launch fails where SGLang stops it before it serves. What a flag or a variable
mends is left to the user; each line names it. Asked of the SGLang at hand: what it did to the environment, and which
functions its source has.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from sglang_sm120.upstream import contracts, server_flags

_CONFIGURER = "sglang.srt.layers.deep_gemm_wrapper.configurer"
_PRIVATE_ATTENTION = "flashinfer.mla._sparse_mla_sm120"


def environment() -> dict[str, str]:
    """SGLang's variables as the user gave them; take it before the flags are resolved."""
    return {name: value for name, value in os.environ.items() if name.startswith("SGLANG_")}


def warnings(given: dict[str, str], server_args: Any, arch: str, kind: str) -> list[str]:
    """One line for each trap that the launch is in.

    Args:
        given: `environment()` before the flags were resolved.
        server_args: resolved flags.
        arch: `sm120` or `sm121`.
        kind: format of the target's experts, as `sglang_api.expert_kind` has it.
    """
    return [
        *_overridden(given),
        *_deep_gemm(given, arch),
        *_expert_format(given, kind),
        *_kernels(given, server_args),
    ]


def faults(given: dict[str, str], server_args: Any) -> list[str]:
    """One line for what makes SGLang stop while it makes the layers, on any GPU; arguments as for `warnings`."""
    return _narrow_shared_expert(given, server_args)


def _overridden(given: dict[str, str]) -> list[str]:
    """SGLang up to 0.5.19 writes a block of variables on SM120 whatever the user gave; later it still forces one."""
    changed = {n: (v, os.environ.get(n, "")) for n, v in given.items() if not _same(v, os.environ.get(n, ""))}
    return [
        f"{name}={wanted} has no effect: this SGLang sets {name}={forced} for DeepSeek-V4 on SM120; unset it"
        for name, (wanted, forced) in sorted(changed.items())
    ]


def _same(a: str, b: str) -> bool:
    truth = {"true": "1", "false": "0", "yes": "1", "no": "0"}
    return truth.get(a.lower(), a) == truth.get(b.lower(), b)


def _narrow_shared_expert(given: dict[str, str], server_args: Any) -> list[str]:
    """The shared expert is block FP8 and cut by tensor parallelism, whatever the routed experts are.

    Every proven release refuses a part that is no multiple of the block, unless the expert stays whole.
    """
    text = server_flags.model_config(server_args).hf_text_config
    tp = server_flags.resolved(server_args, "tp_size")
    width, experts = (getattr(text, name, None) or 0 for name in ("moe_intermediate_size", "n_shared_experts"))
    columns, rest = divmod(width * experts, tp)
    block = (server_flags.quantization_block(server_args) or (128, 128))[0]
    if rest or columns % block == 0 or _keeps_shared_expert(given, server_args):  # SGLang names a rest itself
        return []
    return [
        f"a rank's part of the shared expert has {columns} columns at --tp {tp}, no multiple of its FP8 block {block}, "
        "so SGLang refuses it; set SGLANG_SHARED_EXPERT_TP1=1, or lower --tp"
    ]


def _keeps_shared_expert(given: dict[str, str], server_args: Any) -> bool:
    """Whether every rank has the whole shared expert, or it is one of the routed ones."""
    return (
        _same(given.get("SGLANG_SHARED_EXPERT_TP1", "0"), "1")
        or server_flags.resolved(server_args, "moe_a2a_backend") not in (None, "none")
        or bool(server_flags.resolved(server_args, "enforce_shared_experts_fusion"))
    )


def _deep_gemm(given: dict[str, str], arch: str) -> list[str]:
    """DeepGEMM is on for SM121 wherever only SM120 is asked for its kernels (SGLang 0.5.14 to 0.5.20)."""
    asks = contracts.find(_CONFIGURER, "_sm120_deep_gemm_apis_available") is not None
    if arch != "sm121" or asks or _same(given.get("SGLANG_ENABLE_JIT_DEEPGEMM", "1"), "0"):
        return []
    return [
        "this SGLang turns DeepGEMM on for SM121 without asking whether it has kernels for it; "
        "set SGLANG_ENABLE_JIT_DEEPGEMM=0"
    ]


def _expert_format(given: dict[str, str], kind: str) -> list[str]:
    """A variable that stands in for the look at the checkpoint."""
    value = given.get("SGLANG_DSV4_FP4_EXPERTS")
    if value is None:
        return []
    taken = "FP8" if _same(value, "0") else "FP4"
    if kind == "hybrid-nvfp4" and taken == "FP4":
        return []
    return [
        f"SGLANG_DSV4_FP4_EXPERTS={value}: SGLang takes the MXFP4 experts, a hybrid checkpoint's draft among them, for "
        f"{taken} whatever the checkpoint holds; unset it"
    ]


def _kernels(given: dict[str, str], server_args: Any) -> list[str]:
    found = []
    tilelang = os.environ.get("SGLANG_OPT_USE_TILELANG_INDEXER", "0")
    if server_flags.resolved(server_args, "enable_deepseek_v4_fp4_indexer") and not _same(tilelang, "0"):
        found.append(
            "--enable-deepseek-v4-fp4-indexer runs on DeepGEMM, and this SGLang chooses the TileLang indexer on SM120; "
            "set SGLANG_OPT_USE_TILELANG_INDEXER=0, or leave the flag out"
        )
    if given.get("SGLANG_SM120_FLASHMLA_BACKEND") == "flashinfer" and not _has(_PRIVATE_ATTENTION):
        found.append(
            f"SGLANG_SM120_FLASHMLA_BACKEND=flashinfer needs {_PRIVATE_ATTENTION}, which the installed FlashInfer "
            "lacks; set SGLANG_SM120_FLASHMLA_BACKEND=triton"
        )
    return found


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
