"""A decode step of a deep model on an H200, from `benchmarks/e2e/deep.py`'s receipt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.e2e.deep import FAMILIES
from scripts.markdown import markdown_table

RECEIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "receipts" / "h200-deep.json"
OTHER = "rest"


def receipt() -> dict[str, Any]:
    """The run."""
    found: dict[str, Any] = json.loads(RECEIPT.read_text(encoding="utf-8"))
    return found


def steps() -> str:
    """Milliseconds a step at each batch, and of the prefill: a row for each server."""
    run = receipt()
    servers = run["servers"]
    batches = sorted({step["batch"] for s in servers.values() for step in s["steps"]})
    rows = []
    for server in servers.values():
        times = {step["batch"]: f"{step['ms']:.2f}" for step in server["steps"]}
        rows.append((server["says"], *(times.get(b, "-") for b in batches), f"{server['prefill']['ms']:.1f}"))
    length = next(iter(servers.values()))["prefill"]["tokens"]
    head = ("ms a step at batch", *map(str, batches), f"prefill of {length} tokens, ms")
    named = ", ".join(f"{n} {v}" for n, v in run["versions"].items() if v)
    return f"{run['gpu']}; {run['layers']} layers; {named}.\n\n{markdown_table(head, rows)}"


def families() -> str:
    """Where the profiled steps go, in microseconds by family of kernels."""
    titles = [name for name, _ in FAMILIES] + [OTHER]
    rows = [
        (server["says"], profile["batch"], f"{profile['kernels_a_step']:.0f}",
         *(f"{profile['families_us'].get(title, 0):.0f}" for title in titles))
        for server in receipt()["servers"].values()
        for profile in server["profiles"]
    ]  # fmt: skip
    return markdown_table(("server", "batch", "kernels", *(f"{title}, µs" for title in titles)), rows)
