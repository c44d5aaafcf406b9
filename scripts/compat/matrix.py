"""Run the compatibility matrix: every proven SGLang release, simulated SM120, SM121, SM100 and SM90, stock and overlay.

    python scripts/compat/matrix.py                    # all of it
    python scripts/compat/matrix.py --smoke            # what CI runs
    python scripts/compat/matrix.py --releases 0.5.18,0.5.23 --archs sm120

Real SGLang resolves the flags and builds its MoE layers; only the GPU is simulated. Releases are downloaded once into
${SGLANG_SM120_HOME:-~/.cache/sglang-sm120}/compat. What must come of it is in expected.json, from which
`scripts/docs.py` writes docs/COMPAT.md. Exit status: 0 as expected, 1 not, 2 wrong usage or no network.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.compat import cache, expected, rows, run
from sglang_sm120.upstream import releases

# A post-release that changed nothing the overlay touches is asked on one architecture.
_ONE_ARCH = ("0.5.15.post1",)


def parts(wanted: list[str], archs: list[str]) -> list[tuple[str, str]]:
    """The (release, architecture) pairs to run, an architecture at a time."""
    found = [(r, a) for a in archs for r in reversed(wanted) if r not in _ONE_ARCH or a == "sm120"]
    return [(r, a) for r, a in found if rows.rows_for(r, a)]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", default=",".join(releases.PROVEN))
    parser.add_argument("--archs", default=",".join(rows.SM12X + rows.OTHERS))
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side (2)")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="finished parts: go on from there after an interruption"
    )
    parser.add_argument("--smoke", action="store_true", help="a few rows of one release per era, on SM120 and SM100")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what this run would satisfy, for review")
    a = parser.parse_args()
    wanted, archs, chosen = a.releases.split(","), a.archs.split(","), rows.ROWS
    if a.smoke:
        wanted, archs, chosen = list(rows.SMOKE_RELEASES), ["sm120"], rows.SMOKE_ROWS
    unknown = [r for r in wanted if r not in releases.PROVEN]
    if unknown:
        parser.error(f"--releases: {', '.join(unknown)}; the proven ones are {', '.join(releases.PROVEN)}")
    try:
        for release in wanted:
            cache.path_of(release)
    except cache.Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    cells = _run(parts(wanted, archs), chosen, a.jobs, a.keep)
    if a.record:
        a.record.write_text(json.dumps(expected.record(cells), indent=1) + "\n")
        return 0
    found = expected.problems(cells, expected.load())
    print("\n".join(found))
    print(f"{len(cells)} launches, {len(found)} not as expected")
    return bool(found)


def _run(pairs: list[tuple[str, str]], chosen: list[rows.Row], jobs: int, keep: Path | None) -> list[run.Cell]:
    started, cells = time.monotonic(), []
    for (release, arch), found in zip(pairs, run.run_all(pairs, chosen, jobs, keep), strict=True):
        cells += found
        print(f"{time.monotonic() - started:5.0f} s  {release:12} {arch}: {len(found)} launches", file=sys.stderr)
    return cells


if __name__ == "__main__":
    sys.exit(main())
