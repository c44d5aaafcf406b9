"""Times on SM120 and SM121, from the receipts of `sglang-sm120 selftest`; no other file gives any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.markdown import markdown_table
from sglang_sm120 import schemas

ROOT = Path(__file__).resolve().parents[2]
RECEIPTS = ROOT / "benchmarks" / "receipts"
KIND, SCHEMA = "selftest", 1
NOTHING = "No receipt holds a time on an SM120 or SM121, so there is no figure to show."
Receipt = dict[str, Any]


def receipts() -> list[tuple[str, Receipt]]:
    """File name and content of each self-test of a card that the overlay is for.

    Raises:
        SystemExit: a receipt is of a schema that this version does not read.
    """
    found = []
    for file in sorted(RECEIPTS.rglob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("kind") == KIND and document.get("timing"):
            try:
                schemas.check(document, f"a receipt of {KIND}", SCHEMA, oldest=1)
            except schemas.SchemaError as error:
                raise SystemExit(f"{file}: {error}") from error
            found.append((file.name, document))
    return [(name, document) for name, document in found if is_sm12x(document)]


def is_sm12x(document: Receipt) -> bool:
    """Whether a receipt is of a card that the overlay is for."""
    return (document["device"].get("capability") or (0, 0))[0] == 12


def sentence() -> str:
    """What README says of figures."""
    own = receipts()
    if not own:
        return NOTHING
    cards = ", ".join(dict.fromkeys(document["device"]["name"] for _, document in own))
    return f"[benchmarks](benchmarks/README.md) has the kernel's times on {cards}."


def tables() -> str:
    """Every self-test of an SM120 or SM121."""
    return "\n\n".join(_table(*item) for item in receipts()) or NOTHING


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
