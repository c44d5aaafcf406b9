"""Runs rows of the matrix and says what came of each launch in one line."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.compat import cache
from scripts.compat.rows import SM12X, Row, rows_for
from sglang_sm120.checkpoint import headers_only

WORKER = Path(__file__).with_name("worker.py")
STOCK = {"SGLANG_PLUGINS": "__none__"}
OURS = {"SGLANG_PLUGINS": "sm120"}
SIDES = {"stock": STOCK, "ours": OURS}
_SHORT = {
    "ModelOptNvFp4FusedMoEMethod": "NVFP4",
    "Mxfp4FlashinferCutlassMoEMethod": "FlashInfer CUTLASS MXFP4",
    "Mxfp4FlashinferTrtllmMoEMethod": "FlashInfer TRT-LLM MXFP4",
    "Mxfp4MarlinMoEMethod": "Marlin MXFP4",
    "Mxfp4HummingMoEMethod": "Humming MXFP4",
    "Sm120Mxfp4MoEMethod": "ours",
    "Sm120Nvfp4MoEMethod": "ours, NVFP4",
    "Fp8MoEMethod": "FP8",
}


@dataclass(frozen=True)
class Cell:
    """What came of one launch."""

    release: str
    arch: str
    row: Row
    side: str
    document: dict[str, Any]

    @property
    def outcome(self) -> str:
        """`runs: target; draft`; `breaks: …` where SGLang accepts what cannot run; `stops: …` where the launch ends.

        On other architectures than SM12x the layers are named without a verdict.
        """
        target, draft = self.document["target"], self.document["draft"]
        if target is None or (draft is None and self.row.draft != "none"):
            return "stops: " + _first_words(self.document["errors"][0])
        layers = "; ".join(
            f"{part['runner']} ({_SHORT.get(part['method'], part['method'])})" for part in (target, draft) if part
        )
        if self.arch not in SM12X:
            return f"gets: {layers}"  # whether that runs there is not ours to judge
        return ("breaks: " if self.document["errors"] else "runs: ") + layers


def _first_words(error: str) -> str:
    """The flag or class that an error names first; enough to tell one refusal from another."""
    return error.strip().splitlines()[0].split(":")[0][:90].strip()


def run(
    release: str, arch: str, rows: Iterable[Row], sides: Iterable[str] = SIDES, at: Path | None = None
) -> list[Cell]:
    """All rows of one release on one architecture, in one process.

    Args:
        release: which SGLang.
        arch: which GPU.
        rows: launches.
        sides: `stock`, `ours` or both.
        at: an edited copy of the release's tree.
    """
    wanted = [(row, side) for row in rows_for(release, arch, list(rows)) for side in sides]
    with tempfile.TemporaryDirectory() as directory:
        models = {row.checkpoint: _checkpoint(Path(directory), row) for row, _ in wanted}
        scenarios = [
            {"id": n, "model": str(models[r.checkpoint]), "flags": r.arguments(), "env": r.env | SIDES[s]}
            for n, (r, s) in enumerate(wanted)
        ]
        answers = ask(scenarios, arch, cache.environment(release, at))
    return [Cell(release, arch, row, side, found) for (row, side), found in zip(wanted, answers, strict=True)]


def _checkpoint(directory: Path, row: Row) -> Path:
    return headers_only.write(directory / "-".join(row.checkpoint), *row.checkpoint)


def ask(scenarios: list[dict[str, Any]], arch: str, environment: dict[str, str]) -> list[dict[str, Any]]:
    """The worker's answers, in order."""
    done = subprocess.run(
        [sys.executable, str(WORKER), "--arch", arch],
        input=json.dumps(scenarios),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise SystemExit(
            f"the worker ended with status {done.returncode} and no answer:\n{done.stderr[-3000:]}"
        ) from None


def run_all(
    parts: Iterable[tuple[str, str]], rows: list[Row], jobs: int, keep: Path | None = None
) -> Iterator[list[Cell]]:
    """Each (release, architecture), `jobs` processes at a time, as they end.

    Args:
        parts: what to run.
        rows: launches.
        jobs: processes side by side.
        keep: directory of finished parts: what is there is not run again, what is run is put there.
    """
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda part: _kept(*part, rows, keep), parts)


def _kept(release: str, arch: str, rows: list[Row], keep: Path | None) -> list[Cell]:
    file = keep / f"{release}-{arch}.json" if keep else None
    if file is None or not file.exists():
        cells = run(release, arch, rows)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps([[c.row.id, c.side, c.document] for c in cells]))
        return cells
    by_id = {row.id: row for row in rows}
    return [Cell(release, arch, by_id[i], side, found) for i, side, found in json.loads(file.read_text())]
