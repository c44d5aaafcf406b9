"""Times on SM120 and SM121, from receipts of `selftest` and `tune`, alone or in a `report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.markdown import markdown_table
from sglang_sm120 import schemas
from sglang_sm120.moe import runner_tables

ROOT = Path(__file__).resolve().parents[2]
RECEIPTS = ROOT / "benchmarks" / "receipts"
KIND, SCHEMA = "selftest", 1
NOTHING = "No receipt holds a time on an SM120 or SM121, so there is no figure to show."
Receipt = dict[str, Any]


def documents(kind: str) -> list[tuple[str, Receipt]]:
    """File name and content of each receipt of a kind, and of each part of that kind in a `report`.

    Raises:
        SystemExit: a receipt is of a schema that this version does not read.
    """
    found = []
    for file in sorted(RECEIPTS.rglob("*.json")):
        whole = json.loads(file.read_text(encoding="utf-8"))
        parts = [whole, *whole.values()] if isinstance(whole, dict) and whole.get("kind") == "report" else [whole]
        for document in parts:
            if isinstance(document, dict) and document.get("kind") == kind:
                try:
                    schemas.check(document, f"a receipt of {kind}", SCHEMA, oldest=1)
                except schemas.SchemaError as error:
                    raise SystemExit(f"{file}: {error}") from error
                found.append((file.name, document))
    return found


def receipts() -> list[tuple[str, Receipt]]:
    """File name and content of each self-test of a card that the overlay is for. Raises SystemExit as `documents`."""
    return [(name, found) for name, found in documents(KIND) if found.get("timing") and is_sm12x(found)]


def is_sm12x(document: Receipt) -> bool:
    """Whether a receipt is of a card that the overlay is for."""
    return (document["device"].get("capability") or (0, 0))[0] == 12


def measured_runners() -> list[tuple[str, Receipt]]:
    """File name and content of each table of runners that was measured on a card that the overlay is for."""
    return [(name, found) for name, found in documents("runners") if (found.get("capability") or (0,))[0] == 12]


def sentence() -> str:
    """What README says of figures."""
    names = [document["device"]["name"] for _, document in receipts()]
    names += [document["gpu"] for _, document in measured_runners()]
    if not names:
        return NOTHING
    return f"[benchmarks](benchmarks/README.md) has times on {', '.join(dict.fromkeys(names))}."


def tables() -> str:
    """Every self-test and every table of runners of an SM120 or SM121."""
    parts = [_table(*item) for item in receipts()]
    parts += [_layer(name, document, entry) for name, document in measured_runners() for entry in document["layers"]]
    return "\n\n".join(parts) or NOTHING


def _layer(name: str, document: Receipt, entry: Receipt) -> str:
    """The runners of one layer: a column for each that has times, and a word for those that are not right."""
    timed = [row for row in entry["runners"] if row.get("times")]
    floor = {f["tokens"]: f"{f['us']:.1f}" for f in entry.get("floor", [])}
    counts = sorted({t["tokens"] for row in timed for t in row["times"]})
    us = {(row["runner"], t["tokens"]): f"{t['us']:.1f}" for row in timed for t in row["times"]}
    rows = [(t, floor.get(t, ""), *(us.get((row["runner"], t), "") for row in timed)) for t in counts]
    others = [f"{row['runner']}: {row['status']}" for row in entry["runners"] if row["status"] != "right"]
    wrong = f" Not right: {', '.join(others)}." if others else ""
    head = (
        f"{document['gpu']}, SGLang {document['sglang']}, {runner_tables.layer_of(entry)}: microseconds of a layer, "
        f"cold L2, CUDA graph, medians.{wrong} [Receipt](receipts/{name})."
    )
    titles = ("tokens", "floor, µs", *(f"{row['runner']}, µs" for row in timed))
    return f"{head}\n\n{markdown_table(titles, rows)}"


def _table(name: str, document: Receipt) -> str:
    device, versions = document["device"], document["versions"]
    capability = "".join(map(str, device["capability"]))
    rate = f"{document['copy_bytes_per_s'] / 1e12:.2f} TB/s"
    head = (
        f"{device['name']} (SM{capability}), {document['started'][:10]}, Triton {versions.get('triton')}: one layer, "
        f"cold L2, CUDA graph, medians. Floor: bytes over the copy bandwidth of the same run, {rate}. "
        f"[Receipt](receipts/{name})."
    )
    rows = [
        (
            f"{row['experts']}, {row['hidden']}, {row['inter']}",
            row["tokens"],
            row["activation"],
            f"{row['floor_us']:.1f}",
            f"{row['median_us']:.1f}",
        )
        for row in document["timing"]
    ]
    titles = ("experts, hidden, intermediate", "tokens", "activations", "floor, µs", "kernel, µs")
    return f"{head}\n\n{markdown_table(titles, rows)}"
