"""docs/DECODE.md from the receipt of `scripts/layers/decode_step.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.markdown import markdown_table
from sglang_sm120.commands.selftest.speed_model import CARDS

RECEIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "receipts" / "sm120-decode-step.json"
SHOWN = "2"  # GPUs of the table of families
# Card, name in the model, GPUs that V4-Flash takes of it.
FLOORS = (
    ("RTX PRO 6000", "RTX PRO 6000 (Workstation)", "2"),
    ("RTX 5090", "RTX 5090", "8"),
    ("GB10", "GB10 (DGX Spark)", "2"),
)


def receipt() -> dict[str, Any]:
    """The receipt."""
    return dict(json.loads(RECEIPT.read_text(encoding="utf-8")))


def kernels(found: dict[str, Any]) -> dict[str, str]:
    """Family -> the kernel that SGLang resolves."""
    on = {name: value == "True" for name, value in found.items()}
    fp8 = "SGLang's CUTLASS block FP8" if found["fp8 linear"].startswith("cutlass") else f"`{found['fp8 linear']}`"
    before = "TileLang" if on["SGLANG_OPT_USE_TILELANG_MHC_PRE"] else "PyTorch, then TileLang"
    return {
        "routed experts": f"`{found['moe_runner_backend']}`",
        "bf16: output, down (wo_a)": "DeepGEMM" if on["SGLANG_OPT_FP8_WO_A_GEMM"] else "cuBLAS, dequantised to bf16",
        "hyper-connections": before,
        "router": f"`tiny_gemm` to {found['tiny_gemm up to']} rows, then cuBLAS",
        "attention's cache": f"{found['SGLANG_SM120_FLASHMLA_BACKEND']} sparse MLA",
        "indexer's cache": "TileLang" if on["SGLANG_OPT_USE_TILELANG_INDEXER"] else "DeepGEMM",
        "bf16: compressors, indexer's weights": "cuBLAS",
        "bf16: head": "cuBLAS",
    } | {step["family"]: fp8 for step in receipt()["steps"][SHOWN] if step["family"].startswith("FP8")}


def families() -> str:
    """Megabytes of each family at TP2, the largest first."""
    found = receipt()
    steps, by = found["steps"][SHOWN], kernels(found["resolved"])
    rows = list(steps[0]["bytes"])
    total = {n: sum(step["bytes"][n] for step in steps) for n in rows}
    cells = [
        (step["family"], by[step["family"]], *(f"{step['bytes'][n] / 1e6:.0f}" for n in rows),
         f"{step['bytes'][rows[0]] / total[rows[0]]:.0%}")
        for step in sorted(steps, key=lambda step: -step["bytes"][rows[0]])
    ]  # fmt: skip
    cells.append(("all", "", *(f"{total[n] / 1e6:.0f}" for n in rows), "100%"))
    head = ("family", "kernel", *(f"{n} row{'s' * (n != '1')}" for n in rows), "of 1 row")
    return markdown_table(head, cells)


def floors() -> str:
    """Milliseconds that a card's memory needs for a step's bytes at least."""
    found, cells = receipt(), []
    for card, name, gpus in FLOORS:
        steps = found["steps"][gpus]
        rows = list(steps[0]["bytes"])
        ms = [sum(step["bytes"][n] for step in steps) / CARDS[name].bytes_per_s * 1e3 for n in rows]
        cells.append((card, gpus, f"{CARDS[name].bytes_per_s / 1e9:.0f}", *(f"{t:.2f}" for t in ms)))
    return markdown_table(("card", "GPUs", "GB/s", *(f"{n} row{'s' * (n != '1')}" for n in rows)), cells)


def programs() -> str:
    """CTAs of SGLang's FP8 products, against the SMs that there are."""
    found = receipt()["programs"]
    names = list(found[SHOWN])
    head = ("FP8 product", *(f"TP{gpus}" for gpus in found))
    return markdown_table(head, [(name, *(of[name][1] for of in found.values())) for name in names])
