"""What the overlay's own records say: releases, environment variables, patches."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.markdown import markdown_table
from sglang_sm120 import settings
from sglang_sm120.patches import PATCHES
from sglang_sm120.patching.records import Patch
from sglang_sm120.upstream import releases


def release_span() -> str:
    """The releases of SGLang that the overlay was proven on."""
    return releases.describe()


def release_list() -> str:
    """The same, one by one."""
    return ", ".join(releases.PROVEN)


def patch_table() -> str:
    """Name and effect of each patch."""
    return markdown_table(("patch", "what changes"), [(f"`{p.name}`", p.summary) for p in PATCHES])


def variable_table() -> str:
    """The environment variables."""
    rows = [
        (
            f"`{v.name}`",
            ", ".join(f"`{c}`" for c in v.choices) or "names of patches",
            f"`{v.default}`" if v.default else "unset",
            v.meaning,
        )
        for v in settings.VARIABLES
    ]
    return markdown_table(("variable", "values", "default", "meaning"), rows)


def patch_records() -> str:
    """The whole record of each patch."""
    return "\n\n".join(_record(p) for p in PATCHES)


def _record(patch: Patch) -> str:
    targets = "\n".join(f"  - `{t}`: {_forms(t.fingerprints)}" for t in patch.targets)
    return f"""## `{patch.name}`

{patch.summary[:1].upper()}{patch.summary[1:]}.

- **Acts in SGLang**: {_acts_in(patch)}
- **Symptom without it**: {patch.symptom}
- **Upstream code that it touches**:
{targets}
- **Why it is here**: {patch.why}
- **How it takes effect**: {patch.binding}
- **What stays stock**: {patch.untouched}
- **Can go when**: {patch.remove_when}"""


def _forms(fingerprints: Mapping[str, str]) -> str:
    """The releases that have a target, and how many forms of it; the record has the fingerprint of each."""
    spans = ", ".join(span for span, _ in releases.runs(dict.fromkeys(fingerprints, True)))
    forms = len(set(fingerprints.values()))
    return spans if forms == 1 else f"{spans}, {forms} forms"


def _acts_in(patch: Patch) -> str:
    """The releases, and what becomes of the patch in the others."""
    ((span, _),) = releases.runs(dict.fromkeys(patch.proven_on, True))
    status, reason = patch.elsewhere
    return span if patch.proven_on == releases.PROVEN else f"{span}; {status} in the others: {reason}"
