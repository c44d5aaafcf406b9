"""Tables of `bench` for people: one server, or two side by side with what exceeds the noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sglang_sm120 import schemas
from sglang_sm120.commands import picture
from sglang_sm120.commands.bench.command import SCHEMA, lost, value

# key, title, and whether more is better
FIGURES = (
    ("output_throughput", "tokens/s", True),
    ("median_ttft_ms", "TTFT ms", False),
    ("median_tpot_ms", "TPOT ms", False),
    ("accept_length", "accepted", True),
)
FLOOR = 0.02  # relative difference that two repeats may have by chance and did not show


class ReceiptError(ValueError):
    """A file is no receipt of `bench`; the message names it."""


def read(path: Path) -> dict[str, Any]:
    """A receipt. Raises ReceiptError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        schemas.check(document, "a receipt of bench", SCHEMA)
    except (OSError, ValueError) as error:
        raise ReceiptError(f"{path.name} cannot be compared: {error}") from error
    if document.get("kind") != "bench" or not isinstance(document.get("loads"), list):
        raise ReceiptError(f"{path.name} cannot be compared: it is a receipt of {document.get('kind')}, not of bench")
    return dict(document)


def render(document: dict[str, Any]) -> str:
    """One server, or a comparison."""
    if document["kind"] == "bench-compare":
        return _render_comparison(document)
    lines = [*about(document), f"answers of {document['output_tokens']} tokens; means of the repeats"]
    titles = "".join(f" {title:>9}" for _, title, _ in FIGURES)
    lines.append(f"  {'prompt':>6} {'at once':>7}{titles} {'lost':>5}")
    for row in document["loads"]:
        cells = "".join(f" {_number(value(row, key)):>9}" for key, _, _ in FIGURES)
        lines.append(f"  {row['prompt_tokens']:>6} {row['concurrency']:>7}{cells} {lost(row):>5}")
    lines += [f"left out {what}" for what in document["left_out"]]
    return "\n".join(lines + [f"ERROR   {error}" for error in document["errors"]])


def pictures(document: dict[str, Any]) -> dict[str, str]:
    """Key of a figure -> chart over the sequences at once, a line for each prompt length."""
    found = {}
    card = document["gpu"]["name"] if document["gpu"] else "GPU not known"
    for key, title, _ in FIGURES[:3]:
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in document["loads"]:
            mean = value(row, key)
            if mean:
                lines.setdefault(f"{row['prompt_tokens']} prompt tokens", []).append((row["concurrency"], mean))
        found[key] = picture.chart(f"{title}, {card}", "sequences at once", title, lines)
    return found


def about(document: dict[str, Any]) -> list[str]:
    """What was measured: GPU, versions, flags and runners."""
    server, card = document["server"], document["gpu"]
    lines = [f"GPU     {card['name']} (says {card['source']})" if card else "GPU     not known"]
    lines.append(f"SGLang  {server.get('version')}, measured with sglang-sm120 {document['overlay']}")
    flags = ("tp_size", "ep_size", "moe_runner_backend", "speculative_algorithm", "speculative_num_draft_tokens")
    lines.append("flags   " + ", ".join(f"{name} {server[name]}" for name in flags if server.get(name) is not None))
    lines += [f"{row['role']:<7} {row['kernel']} (sglang-sm120 {row['version']})" for row in document["runners"]]
    if not document["runners"]:
        lines.append("runners the overlay's metrics were not seen (stock, or without --enable-metrics)")
    return lines


def compare(first: Path, second: Path) -> dict[str, Any]:
    """Two receipts side by side, load by load. Raises ReceiptError."""
    a, b = read(first), read(second)
    others = {(row["prompt_tokens"], row["concurrency"]): row for row in b["loads"]}
    rows = []
    for row in a["loads"]:
        other = others.get((row["prompt_tokens"], row["concurrency"]))
        if other is None:
            continue
        figures = {key: _difference(row, other, key, more) for key, _, more in FIGURES}
        rows.append({"prompt_tokens": row["prompt_tokens"], "concurrency": row["concurrency"], "figures": figures})
    errors = [f"{path.name}: {error}" for path, document in ((first, a), (second, b)) for error in document["errors"]]
    if not rows:
        errors.append("the receipts have no load in common")
    return {
        "schema": SCHEMA, "kind": "bench-compare", "first": about(a), "second": about(b), "loads": rows,
        "errors": errors,
    }  # fmt: skip


def _difference(row: dict[str, Any], other: dict[str, Any], key: str, more: bool) -> dict[str, Any] | None:
    """Both means, the relative difference, the noise, and whether the second is better, worse or the same."""
    a, b = value(row, key), value(other, key)
    if a is None or b is None or a <= 0:
        return None
    change, noise = b / a - 1, max(FLOOR, _noise(row, key), _noise(other, key))
    verdict = "same" if abs(change) <= noise else "better" if (change > 0) == more else "worse"
    return {"first": a, "second": b, "change": change, "noise": noise, "verdict": verdict}


def _noise(row: dict[str, Any], key: str) -> float:
    """How far the repeats of a load lie apart, relative to their mean; a single one says nothing, hence all."""
    found = [r[key] for r in row["repeats"] if isinstance(r.get(key), int | float)]
    if len(found) < 2:
        return 1.0
    return (max(found) - min(found)) / (sum(found) / len(found)) if sum(found) else 0.0


def _render_comparison(document: dict[str, Any]) -> str:
    lines = ["first", *(f"  {line}" for line in document["first"])]
    lines += ["second", *(f"  {line}" for line in document["second"])]
    lines.append(f"  {'prompt':>6} {'at once':>7} {'':>9} {'first':>9} {'second':>9} {'change':>8} {'noise':>7}")
    for row in document["loads"]:
        for key, title, _ in FIGURES:
            found = row["figures"][key]
            if found is None:
                continue
            place = f"  {row['prompt_tokens']:>6} {row['concurrency']:>7} {title:>9}"
            both = f"{_number(found['first']):>9} {_number(found['second']):>9}"
            lines.append(f"{place} {both} {found['change']:>+8.1%} {found['noise']:>7.1%} {found['verdict']}")
    return "\n".join(lines + [f"ERROR   {error}" for error in document["errors"]])


def _number(found: float | None) -> str:
    return "" if found is None else f"{found:.1f}" if found >= 100 else f"{found:.2f}"
