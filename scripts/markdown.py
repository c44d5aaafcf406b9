"""Tables, and the parts of a document that a program writes."""

from __future__ import annotations

from collections.abc import Iterable

WHOLE = ""  # the name of the part that is a whole file


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; a cell's pipes are escaped and its line breaks become spaces.

    Raises:
        ValueError: a row has more or fewer cells than the head.
    """
    titles = list(head)
    lines = [titles, ["---"] * len(titles)]
    for row in rows:
        cells = [str(cell).replace("|", "\\|").replace("\n", " ") for cell in row]
        if len(cells) != len(titles):
            raise ValueError(f"a row of {len(cells)} cells under {len(titles)} titles: {cells}")
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def replaced(text: str, part: str, content: str) -> str:
    """The text with what stands between `<!-- part -->` and `<!-- /part -->` replaced; `WHOLE` replaces all of it.

    Markers on one line keep their content on that line.

    Raises:
        ValueError: a marker does not stand exactly once in the text.
    """
    if part == WHOLE:
        return content.rstrip("\n") + "\n"
    start, end = f"<!-- {part} -->", f"<!-- /{part} -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise ValueError(f"{start} and {end} must each stand once, in this order")
    head, rest = text.split(start)
    old, tail = rest.split(end)
    inner = f"\n{content}\n" if "\n" in old else content
    return f"{head}{start}{inner}{end}{tail}"
