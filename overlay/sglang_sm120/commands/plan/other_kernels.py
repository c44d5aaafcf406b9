"""The kernels of a launch that are not MoE: which ones SGLang resolved, and those that are known to break on SM120.

The overlay changes none of them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from sglang_sm120.commands.findings import links
from sglang_sm120.commands.findings.record import Finding
from sglang_sm120.commands.plan.document import OtherKernels
from sglang_sm120.commands.plan.flag_values import Flags
from sglang_sm120.upstream import contracts, releases

ATTENTION = "dsv4"
_PER_PHASE = ("prefill_attention_backend", "decode_attention_backend", "speculative_draft_attention_backend")
_SPARSE_MLA = "flashinfer.mla._sparse_mla_sm120"
_WINDOW, _ALIGNED = 128, 64  # tokens of the sliding window; selected tokens are padded to whole groups of these
_PADDED_HEADS = 64  # what SGLang pads a rank's heads to where FlashInfer has no kernel for them
_UNSURE_TOKENS = 6


def resolved(flags: Flags) -> OtherKernels:
    """What SGLang chose, from resolved flags and from the variables that it sets while it resolves them."""
    draft = flags("speculative_draft_attention_backend") if flags("speculative_algorithm") else None
    tilelang, torch = (_on(f"SGLANG_{name}") for name in ("OPT_USE_TILELANG_INDEXER", "FP8_PAGED_MQA_LOGITS_TORCH"))
    indexer = "DeepGEMM FP4" if flags("enable_deepseek_v4_fp4_indexer") else None
    indexer = indexer or ("TileLang" if tilelang else "torch" if torch else "DeepGEMM")
    return OtherKernels(
        attention=str(flags("attention_backend")),
        draft_attention=draft,
        sparse_mla=_sparse_mla_backend(),
        indexer=indexer,
        all_reduce=_all_reduce(flags),
    )


def findings(flags: Flags, given: Mapping[str, str], text: Any, head: str | None) -> list[Finding]:
    """What breaks, or is known to answer wrongly.

    Args:
        flags: as SGLang resolved them.
        given: flag -> flag and value as the user gave them, `complaints.as_given`.
        text: the target's text configuration.
        head: dtype of the checkpoint's output head, None where no header says it.
    """
    dspark = flags("speculative_algorithm") == "DSPARK"
    return [
        *_attention(flags, given),
        *(_sparse_mla(flags, text) + _ragged() + _six_tokens(flags) + _quantized_head(head) if dspark else []),
        *_fp4_indexer(flags),
        *links.half_disabled(_sums_in_pairs(flags), bool(flags("disable_custom_all_reduce")), os.environ),
    ]


def _attention(flags: Flags, given: Mapping[str, str]) -> list[Finding]:
    found = []
    asked = given.get("--attention-backend")
    if asked is not None and not asked.endswith(ATTENTION):
        says = f"{asked} has no effect: SGLang takes {flags('attention_backend')} for DeepSeek-V4"
        found.append(Finding("attention", says, "leave the flag out"))
    for field in _PER_PHASE:
        backend = flags(field)
        if backend not in (None, ATTENTION):
            flag = f"--{field.replace('_', '-')}"
            says = f"{flag} {backend} is not {ATTENTION}, which alone has DeepSeek-V4's cache and kernels for SM120"
            found.append(Finding("attention", says, "leave the flag out", "sgl-project/sglang#40558"))
    return found


def _sparse_mla(flags: Flags, text: Any) -> list[Finding]:
    """DSpark's draft looks at its window and its block; FlashInfer before 0.6.18 had kernels for some numbers alone."""
    if _sparse_mla_backend() != "FlashInfer":
        return []
    try:
        kernels = importlib.import_module(_SPARSE_MLA)._DECODE_DSV4_DISPATCH
    except (ImportError, AttributeError):
        return []  # `ineffective_settings` says that the module is missing; a newer one needs no table
    block = flags("speculative_dspark_block_size") or getattr(text, "dspark_block_size", None) or 1
    selected = -(-(_WINDOW + int(block)) // _ALIGNED) * _ALIGNED
    if (_PADDED_HEADS, selected) in kernels:
        return []
    return [
        Finding(
            "sparse-mla",
            f"FlashInfer {releases.installed('flashinfer-python')} has no sparse-MLA kernel for the {selected} tokens "
            "that DSpark's draft looks at (`num_tokens > 64`, `Unsupported sparse-MLA prefill configuration`)",
            "install a newer SGLang with the FlashInfer that it pins (0.6.18 or newer), or set "
            "SGLANG_SM120_FLASHMLA_BACKEND=triton, which slows all attention",
            "sgl-project/sglang#33134, sgl-project/sglang#33943",
        )
    ]


def _ragged() -> list[Finding]:
    mode = os.environ.get("SGLANG_RAGGED_VERIFY_MODE", "static")
    if mode == "static":
        return []
    return [
        Finding(
            "ragged-verify",
            f"SGLANG_RAGGED_VERIFY_MODE={mode}: capturing CUDA graphs ends with an illegal memory access on SM120",
            "unset it (static), or give --disable-cuda-graph",
            "sgl-project/sglang#33412",
        )
    ]


def _six_tokens(flags: Flags) -> list[Finding]:
    if flags("speculative_num_draft_tokens") != _UNSURE_TOKENS:
        return []
    return [
        Finding(
            "six-tokens",
            f"the target verifies {_UNSURE_TOKENS} tokens, the number for which users on SM120 saw corrupted text",
            "--speculative-dspark-block-size 4",
            "sgl-project/sglang#33800",
        )
    ]


def _quantized_head(head: str | None) -> list[Finding]:
    """Up to SGLang 0.5.18 the draft multiplies with the head's stored bytes."""
    if head in (None, "BF16", "F16", "F32") or contracts.find("sglang.srt.models.dspark", "project_through_lm_head"):
        return []
    return [
        Finding(
            "quantized-head",
            f"the checkpoint's output head is stored as {head}, and this SGLang's DSpark draft multiplies with it as "
            "with a plain matrix",
            "take SGLang 0.5.19 or newer, or a checkpoint whose head is BF16",
            "sgl-project/sglang#35354",
        )
    ]


def _fp4_indexer(flags: Flags) -> list[Finding]:
    if not flags("enable_deepseek_v4_fp4_indexer"):
        return []
    says = "--enable-deepseek-v4-fp4-indexer costs accuracy: GSM8K went from 95.5 to 93.0 on SM120"
    return [Finding("fp4-indexer", says, "leave the flag out unless the cache must shrink", "sgl-project/sglang#27059")]


def _sparse_mla_backend() -> str:
    name = os.environ.get("SGLANG_SM120_FLASHMLA_BACKEND", "flashinfer").lower()
    return {"flashinfer": "FlashInfer", "triton": "Triton"}.get(name, name)


def _sums_in_pairs(flags: Flags) -> bool:
    """Whether exactly two ranks of one host sum: all of them, or those of an attention group."""
    tp = flags("tp_size") or 1
    attention = tp // max(1, (flags("dp_size") or 1) if flags("enable_dp_attention") else 1)
    return (flags("nnodes") or 1) == 1 and 2 in (tp, attention)


def _all_reduce(flags: Flags) -> str | None:
    """Who sums over ranks where no GPU has NVLink."""
    if (flags("tp_size") or 1) == 1:
        return None
    return "SGLang's own" if _sums_in_pairs(flags) and not flags("disable_custom_all_reduce") else "NCCL"


def _on(variable: str) -> bool:
    return os.environ.get(variable, "0").lower() in ("1", "true", "yes")
