"""docs/UPDATES.md: what becomes of weights that change, by path, load format and flag."""

from __future__ import annotations

from scripts.markdown import markdown_table
from sglang_sm120.upstream import releases, update_paths


def paths() -> str:
    """A row for each run of releases in which neither SGLang nor the overlay does anything else."""
    rows = []
    for path in update_paths.PATHS:
        both = {release: (calls, path.ours[release]) for release, calls in path.calls.items()}
        rows += [(path.name, span, *cells) for span, cells in releases.runs(both)]
    return markdown_table(("path", "SGLang", "what SGLang calls", "what the overlay does"), rows)


def load_formats() -> str:
    """Formats that are taken or refused for the same reason share a row."""
    groups: dict[tuple[bool, str], list[str]] = {}
    for name, found in update_paths.LOAD_FORMATS.items():
        groups.setdefault(found, []).append(f"`{name}`")
    rows = [(", ".join(names), "yes" if works else "refused", why) for (works, why), names in groups.items()]
    return markdown_table(("format", "taken", "because it"), rows)


def flags() -> str:
    """Flags that stop the launch; those with the same reason share a row."""
    groups: dict[str, list[str]] = {}
    for flag in update_paths.FLAGS:
        groups.setdefault(f"{flag.why}{' (target only)' if flag.target_only else ''}", []).append(f"`{flag.name}`")
    return markdown_table(("flag", "what SGLang does"), [(", ".join(names), why) for why, names in groups.items()])
