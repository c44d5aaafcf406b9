"""What other projects' code says of this one's numbers, from the receipt of `benchmarks/judges/run.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECEIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "receipts" / "judges.json"
TITLES = {
    "nvidia-modelopt": "ModelOpt", "compressed-tensors": "compressed-tensors", "torchao": "torchao",
    "flashinfer-python": "FlashInfer", "transformers": "transformers", "ml_dtypes": "ml_dtypes",
}  # fmt: skip


def sentence() -> str:
    """Who agrees, how exactly, and what wrong references differ by.

    Raises:
        ValueError: a judge does not agree.
    """
    made = json.loads(RECEIPT.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = made["rows"]
    bad = [f"{row['judge']} {row['format']} {row['what']}" for row in rows if not row["good"]]
    if bad:
        raise ValueError(f"{RECEIPT.name}: not good: {'; '.join(bad)}")
    judges = [f"{title} {made['packages'][name]}" for name, title in TITLES.items()]
    layers = [row for row in rows if row["what"] == "layer"]
    figures = [row["figure"] for row in layers]
    wrong = min(figure for row in layers for figure in row["wrong"].values())
    exact = sum(row["limit"] == 0 for row in rows)
    return (
        f"{', '.join(judges[:-1])} and {judges[-1]} were asked about MXFP4 and NVFP4: {exact} comparisons of values, "
        f"decoders and quantisers agree bit for bit, {len(layers)} of whole layers (transformers' `DeepseekV4Experts`, "
        f"FlashInfer's references) within {min(figures):.1e} to {max(figures):.1e}; wrong references beside them "
        f"(halves swapped, one binade, one global scale for both halves) are off by at least {wrong:.1g}."
    )
