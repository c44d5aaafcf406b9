"""Greedy texts alone, together, with and without speculation, as a run's page shows them."""

from __future__ import annotations

from typing import Any

from scripts.markdown import markdown_table

INTRO = """16 prompts of 9 to 204 tokens, 96 new ones each, with log probabilities. `again` repeats them one by one,
`together` sends all at once, `mixed` beside four prompts of 700 tokens."""


def section(found: list[dict[str, Any]]) -> list[str]:
    """What was compared with what."""
    rows = [
        (
            f"`{row['server']}`", row["part"], "itself, alone" if row["against"] == "alone" else f"`{row['against']}`",
            f"{row['tokens']} of {row['prompts']}", f"{row['bits']} of {row['prompts']}", min(row["until"]),
            f"{row['largest']:.3g}",
        )
        for row in found
        if row["prompts"]
    ]  # fmt: skip
    head = ("server", "asked", "against", "equal texts", "equal log probabilities too", "least equal tokens")
    head += ("largest difference of log probabilities",)
    return ["## The same texts whatever the batch", "", INTRO, "", markdown_table(head, rows), ""] if rows else []
