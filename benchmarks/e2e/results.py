"""What a run says of itself and of its servers' answers."""

from __future__ import annotations

import importlib.metadata as metadata
import subprocess
import sys
from typing import Any

from benchmarks.e2e import updates


def compare(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Greedy tokens of two servers on the same prompts, and their logprobs as far as the tokens agree."""
    rows, differences = [], []
    for a, b in zip(one["answers"].get("logprobs", []), other["answers"].get("logprobs", []), strict=False):
        if "error" in a or "error" in b:
            continue
        same = next((i for i, (x, y) in enumerate(zip(a["ids"], b["ids"], strict=False)) if x != y), len(a["ids"]))
        rows.append(same)
        differences += [abs(x - y) for x, y in zip(a["logprobs"][:same], b["logprobs"][:same], strict=True)]
    alone = [
        a.get("ids") == b.get("ids") and "ids" in a
        for a, b in zip(one["answers"].get("alone", []), other["answers"].get("alone", []), strict=False)
    ]
    return {
        "prompts": len(alone),
        "identical": sum(alone),
        "accept_lengths": [_accept_length(server) for server in (one, other)],
        "tokens_until_the_first_difference": rows,
        "largest_logprob_difference": max(differences, default=None),
    }


def _accept_length(server: dict[str, Any]) -> float | None:
    rows = [row for row in server["answers"].get("alone", []) if "spec_verify_ct" in row and "ids" in row]
    verified = sum(row["spec_verify_ct"] for row in rows)
    return round(sum(len(row["ids"]) for row in rows) / verified, 4) if verified else None


def versions() -> dict[str, str | None]:
    """Of what runs."""
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for name in ("sglang", "sglang-sm120", "torch", "triton", "flashinfer-python", "sglang-kernel", "tilelang"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def gpu(used: list[str]) -> str:
    """Name, memory and driver of these GPUs, named as in CUDA_VISIBLE_DEVICES."""
    query = ["nvidia-smi", "-i", ",".join(used), "--query-gpu=name,memory.total,driver_version"]
    query += ["--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()
        return found[0] if len(found) == 1 else f"{len(found)} x {found[0]}"
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "none"


def as_expected(result: dict[str, Any]) -> bool:
    """Whether a server became ready, and took other weights, or ended with what it should say and left no process.

    One that this machine cannot try does not count.
    """
    if result.get("outcome", "").startswith("not run"):
        return True
    if result.get("outcome") not in (result["expected"], None):
        return False
    changed = all(updates.holds(step) for step in result.get("updates", []))
    return changed and bool(result.get("said", True)) and not result.get("left")


def comparisons(results: dict[str, Any]) -> dict[str, Any]:
    """Every pair of servers that answered."""
    names = [n for n, r in results.items() if "answers" in r]
    return {f"{a} / {b}": compare(results[a], results[b]) for i, a in enumerate(names) for b in names[i + 1 :]}
