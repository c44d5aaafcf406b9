"""Receipts of bench_moe.py, read by the scripts of this folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "overlay"))  # nothing need be installed

from sglang_sm120 import schemas

SCHEMA, OLDEST = 2, 1
KIND = "bench_moe"


def receipt(path: Path) -> dict[str, Any]:
    """One receipt.

    Raises:
        SystemExit: the file cannot be read, or is no receipt that this version reads; one line says which and why.
    """
    try:
        document = dict(schemas.check(json.loads(path.read_text()), f"a receipt of {KIND}", SCHEMA, OLDEST))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, schemas.SchemaError) as error:
        raise SystemExit(f"{path}: {error}") from error
    if document.get("kind") != KIND or not isinstance(document.get("rows"), list):
        raise SystemExit(f"{path}: a document of kind {document.get('kind')!r}, expected a receipt of {KIND}")
    return document
