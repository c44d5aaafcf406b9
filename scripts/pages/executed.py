"""What of SM120's code was executed, from the receipts of `selftest --sm120-code` and `machine_code/sanitize.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sglang_sm120.commands.selftest.sm120_code.compiling import kernel_digest

RECEIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "receipts"


def _receipt(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECEIPTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def tiles() -> str:
    """How many tiles of which architecture, on which Triton, and whether the kernel is still the one that ran."""
    receipt = _receipt("h200-sm120-code")
    runs = [f"{sum(t['ok'] for t in r['tiles'])} of {r['arch']} on Triton {r['triton']}" for r in receipt["runs"]]
    text = f"{' and '.join(runs)}, {receipt['date']}"
    return text if receipt["kernel"] == kernel_digest() else f"{text}; the kernel has changed since"


def sanitized() -> str:
    """Which tools found nothing in which code."""
    rows = [row for row in _receipt("h200-sanitizer")["rows"] if row["tool"]]
    good = [f"{row['tool']} of {row['code']}" for row in rows if row["ok"]]
    bad = [f"{row['tool']} of {row['code']}" for row in rows if not row["ok"]]
    return f"nothing by {', '.join(good)}" + (f"; red or not finished: {', '.join(bad)}" if bad else "")
