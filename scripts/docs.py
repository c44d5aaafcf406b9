"""Write every part of a document that comes from records, receipts or a command's output.

    ./scripts/python scripts/docs.py             write what is out of date
    ./scripts/python scripts/docs.py --check     write nothing; exit status 1 where a part is out of date
    ./scripts/python scripts/docs.py --fast      without the parts for which SGLang is imported
    ./scripts/python scripts/docs.py README.md   these documents only

A part stands between `<!-- name -->` and `<!-- /name -->`. `PARTS` names the function that gives its content.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.markdown import WHOLE, replaced
from scripts.pages import (
    bounds,
    decode_step,
    deep,
    executed,
    judges,
    launches,
    messages,
    planned,
    races,
    records,
    selftests,
    server_run,
    servers,
    tiles,
    updates,
)

ROOT = Path(__file__).resolve().parents[1]
Part = Callable[[], str]
SLOW: tuple[Part, ...] = (planned.output,)
PARTS: dict[str, dict[str, Part]] = {
    "README.md": {
        "releases": records.release_span,
        "plan": planned.output,
        "patches": records.patch_table,
        "figures": selftests.sentence,
    },
    "docs/ENVIRONMENT.md": {"variables": records.variable_table},
    "docs/PATCHES.md": {"releases": records.release_span, "records": records.patch_records},
    "docs/COMPAT.md": {
        "releases": records.release_list,
        "patches": launches.patch_states,
        "launches": launches.usual,
        "elsewhere": launches.elsewhere,
    },
    "docs/PROOF.md": {"executed": executed.tiles, "sanitized": executed.sanitized},
    "docs/UPDATES.md": {"paths": updates.paths, "load-formats": updates.load_formats, "flags": updates.flags},
    "docs/TROUBLESHOOTING.md": {"index": messages.index},
    "docs/DECODE.md": {
        "families": decode_step.families,
        "floors": decode_step.floors,
        "programs": decode_step.programs,
    },
    "docs/E2E.md": {
        "before-after": servers.before_after,
        "comparisons": servers.comparisons,
        "speeds": servers.speeds,
        "runs": servers.runs,
    },
    "scripts/compat/LAUNCHES.md": {WHOLE: launches.page},
    "benchmarks/README.md": {
        "sm12x": selftests.tables,
        "layer": races.shown,
        "ranks": races.summary,
        "nvfp4": races.summary_nvfp4,
        "missed": races.missed,
        "steps": deep.steps,
        "families": deep.families,
        "judges": judges.sentence,
    },
    "benchmarks/receipts/h200-tables.md": {WHOLE: races.tables},
    "kernels/sm120/README.md": {"sources": tiles.sources, "tiles": tiles.worst},
    "kernels/sm120/MACHINE_CODE.md": {"tiles": tiles.everything, "prefill": bounds.prefill},
}
for _run in server_run.receipts():
    PARTS[f"benchmarks/receipts/e2e/{_run}.md"] = {WHOLE: lambda run=_run: server_run.page(run)}


def written(name: str, fast: bool = False) -> tuple[str, str]:
    """A document as it is, and as it should be; with `fast` the parts of `SLOW` are taken as they are.

    Raises:
        ValueError: a marker is missing, or a part cannot be made.
    """
    path = ROOT / name
    present = path.read_text(encoding="utf-8") if path.exists() else ""
    text = present
    for part, content in PARTS[name].items():
        if fast and content in SLOW:
            continue
        try:
            text = replaced(text, part, content())
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return present, text


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a part is out of date")
    parser.add_argument("--fast", action="store_true", help="leave out the parts for which SGLang is imported")
    parser.add_argument("documents", nargs="*", metavar="DOCUMENT", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args()
    unknown = [name for name in options.documents if name not in PARTS]
    if unknown:
        parser.error(f"{unknown[0]} has no generated part; expected one of {', '.join(PARTS)}")
    stale = False
    for name in options.documents or PARTS:
        try:
            present, text = written(name, options.fast)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
        if present == text:
            continue
        stale = True
        if options.check:
            print(f"{name} is out of date; run scripts/docs.py {name}", file=sys.stderr)
        else:
            (ROOT / name).write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return int(options.check and stale)


if __name__ == "__main__":
    sys.exit(main())
