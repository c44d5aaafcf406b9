"""The schema number of a document that an earlier or later sglang-sm120 wrote, checked by whoever reads one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_sm120 import __version__


class SchemaError(ValueError):
    """A document that this version cannot read; the message says what it is and which version can."""


def check(document: Any, what: str, schema: int, oldest: int | None = None) -> Mapping[str, Any]:
    """The document, if it has a schema that the caller reads.

    Args:
        document: what was parsed from JSON.
        what: what it is for people, as in "a tile table".
        schema: the number that the caller reads, the newest of them.
        oldest: the oldest that it reads; `schema` if None.

    Raises:
        SchemaError: it is no JSON object, has no schema, or has another one.
    """
    found = document.get("schema") if isinstance(document, dict) else None
    if type(found) is not int:
        raise SchemaError(f"not {what}: it has no schema number")
    assert isinstance(document, dict)
    if (schema if oldest is None else oldest) <= found <= schema:
        return document
    writer = _writer(document)
    if found > schema:
        need = f"sglang-sm120 {writer}, which wrote it," if writer else "the sglang-sm120 that wrote it"
        raise SchemaError(
            f"{what} of schema {found}; this sglang-sm120 {__version__} reads schema {schema}. "
            f"It needs {need} or a newer one"
        )
    raise SchemaError(
        f"{what} of schema {found}, of sglang-sm120 {writer or '(older)'}; this {__version__} reads schema {schema}. "
        "Make it anew"
    )


def _writer(document: Mapping[str, Any]) -> str | None:
    """The version that wrote it, where it says so: `overlay`, or `versions` of a receipt."""
    versions = document.get("versions")
    found = document.get("overlay") or (versions.get("sglang-sm120") if isinstance(versions, dict) else None)
    return found if isinstance(found, str) else None
