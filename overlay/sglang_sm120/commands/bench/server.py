"""What a running server says of itself, as far as it may be shown to others: no path, host, key or prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sglang_sm120 import gpu
from sglang_sm120.checkpoint import inspection
from sglang_sm120.commands import client

# Fields of /server_info that decide speed and hold numbers, switches or names of SGLang's own.
SHOWN = (
    "version", "tp_size", "ep_size", "dp_size", "pp_size", "moe_dp_size", "moe_runner_backend", "moe_a2a_backend",
    "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
    "speculative_moe_runner_backend", "attention_backend", "quantization", "kv_cache_dtype", "dtype", "load_format",
    "chunked_prefill_size", "max_running_requests", "max_total_tokens", "max_total_num_tokens", "context_length",
    "mem_fraction_static", "page_size", "cuda_graph_bs", "cuda_graph_max_bs", "cuda_graph_bs_decode",
    "cuda_graph_max_bs_decode", "disable_cuda_graph", "disable_radix_cache", "disable_overlap_schedule",
    "enable_dp_attention", "enable_metrics", "enable_torch_compile", "disaggregation_mode", "schedule_policy",
    "swa_full_tokens_ratio",
)  # fmt: skip
_WORD = 40  # characters of a name that is SGLang's own


class ServerError(RuntimeError):
    """The server cannot be measured; the message says what came instead of an answer."""


def info(url: str, timeout_s: float = 10.0) -> dict[str, Any]:
    """`/server_info` as it is. Raises ServerError."""
    try:
        found = json.loads(client.ask(f"{url.rstrip('/')}/server_info", timeout_s=timeout_s))
    except (OSError, ValueError) as error:
        raise ServerError(
            f"{client.without_password(url)} does not answer as a server of SGLang does: {error}"
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("version"), str):
        raise ServerError(f"{client.without_password(url)}/server_info is no SGLang server's: it has no version")
    return found


def is_alive(url: str) -> bool:
    """Whether the server still answers."""
    try:
        client.ask(f"{url.rstrip('/')}/health", timeout_s=10.0)
    except OSError:
        return False
    return True


def shown(found: dict[str, Any]) -> dict[str, Any]:
    """The fields that decide speed, without what could be private."""
    return {name: found[name] for name in SHOWN if name in found and _may_be_shown(found[name])}


def _may_be_shown(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, int | float) for item in value)
    if isinstance(value, str):
        return len(value) <= _WORD and not set(value) & set("/\\@: ")
    return isinstance(value, bool | int | float)


def overlay(url: str) -> list[dict[str, str]]:
    """What the overlay in the server's ranks says: version, role, kernel, patches and GPU; none without metrics."""
    from sglang_sm120.moe import metrics

    try:
        from prometheus_client.parser import text_string_to_metric_families as parse
    except ImportError:
        return []
    try:
        text = client.ask(f"{url.rstrip('/')}/metrics", timeout_s=10.0).decode()
        samples = [s for family in parse(text) for s in family.samples if s.name == metrics.INFO and s.value == 1]
    except (OSError, ValueError):
        return []
    names = ("version", "role", "kernel", "patches", "gpu")
    rows = [{name: sample.labels.get(name, "") for name in names} for sample in samples]
    return sorted({json.dumps(row): row for row in rows}.values(), key=lambda row: row["role"], reverse=True)


def card(url: str, said: list[dict[str, str]]) -> dict[str, str] | None:
    """The server's GPU: as its ranks say, or this machine's where the server is on it."""
    named = next((row["gpu"] for row in said if row["gpu"]), None)
    if named:
        return {"name": named, "source": "the server"}
    local = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    found = gpu.detect() if local else None
    return {"name": found.name, "source": "this machine"} if found else None


def checkpoint(model: Path | None) -> dict[str, Any] | None:
    """Format and widths of the checkpoint, where its directory can be read here."""
    if model is None or not model.is_dir():
        return None
    try:
        facts = inspection.inspect(model)
    except inspection.CheckpointError:
        return None
    names = ("kind", "hidden_size", "moe_intermediate_size", "experts", "top_k", "swiglu_limit")
    return {name: getattr(facts, name) for name in names}
