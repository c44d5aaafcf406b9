"""The index of docs/TROUBLESHOOTING.md: its sections. A reader with a message searches the page."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "TROUBLESHOOTING.md"
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


def anchor(title: str) -> str:
    """Of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def index() -> str:
    """A link to each section, in the page's order."""
    text = FENCE.sub("", DOCUMENT.read_text(encoding="utf-8"))
    return "\n".join(f"- [{title}](#{anchor(title)})" for title in re.findall(r"^## (.+)$", text, re.M))
