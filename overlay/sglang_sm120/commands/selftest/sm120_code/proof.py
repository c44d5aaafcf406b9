"""One Triton and one architecture: every tile in use compiled for SM120, and run on this SM90. A process of its own.

    python -m sglang_sm120.commands.selftest.sm120_code.proof --arch sm_120a --out FILE

`command` starts one for each Triton; by hand it takes `--break`, to see that a fault is found.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import cases, checks, mutations
from .cases import Case
from .compiling import ARCHITECTURES, SMS, Made, Sm120Code, WrongGpu, key_of
from .ptx import PtxError

LAST = 8  # experts behind 2**31 bytes that are asked
BEYOND_TOKENS = (1, 40, 1200)


class Work:
    """What is to be run, for GPUs of all the sizes asked for."""

    def __init__(self) -> None:
        self.in_use: dict[int, set[str]] = {}
        self.cases: dict[Case, tuple[int, frozenset[str]]] = {}  # with the SMs that it is planned for
        self.steps: dict[tuple[Any, ...], Any] = {}
        self._seen: set[tuple[Any, ...]] = set()

    def add(self, found: Mapping[Case, frozenset[str]], sms: int, device: Any, lean: bool) -> None:
        """Cases as planned for `sms` SMs; what was added for another size already is not run again."""
        self.in_use[sms] = set().union(*found.values())
        new = {c: t for c, t in found.items() if not lean or not t <= self.used}
        for case, tiles in (cases.fewest(new) if lean else new).items():
            steps = {key_of(s.kernel, s.args, s.options): s for s in cases.steps(case, device)}
            same = (case.tokens == cases.MOST_TOKENS, str(case).split(" T=")[0], *steps)
            if same in self._seen or case in self.cases:
                continue
            self._seen.add(same)
            self.cases[case] = (sms, tiles)
            self.steps |= steps

    @property
    def used(self) -> set[str]:
        return {tile for _, tiles in self.cases.values() for tile in tiles}


def compile_all(steps: Iterable[Any], workers: int) -> list[str]:
    """Compile and load kernels in threads; what could not be, with the reason."""

    from triton.runtime.errors import TritonError

    def one(step: Any) -> str | None:
        try:
            step.kernel.ready(0, step.args, step.options, early=True)
        except (PtxError, TritonError, RuntimeError) as error:  # RuntimeError: the loader's
            return f"{cases.tile_of(step)}: {str(error).strip()[:600]}"
        return None

    with ThreadPoolExecutor(workers, "sm120-code-compile") as pool:
        return sorted({problem for problem in pool.map(one, steps) if problem})


def run_cases(
    code: Sm120Code, work: Work, replays: int, device: Any, progress: Callable[[str], None]
) -> tuple[list[dict[str, Any]], list[str]]:
    """(a row for each case, what is wrong). A tile that comes for the first time is looked at closely."""
    rows: list[dict[str, Any]] = []
    errors: list[str] = []
    looked_at: set[str] = set()
    for layer, weights in dict.fromkeys((c.layer, c.format) for c in work.cases):
        chosen = [c for c in work.cases if (c.layer, c.format) == (layer, weights)]
        progress(f"{layer.name} {weights}: {len(chosen)} cases")
        tensors = checks.random_weights(layer, weights, device)
        inputs = [checks.random_inputs(layer, c.tokens, device) for c in chosen]
        wants = checks.wanted(chosen, inputs, tensors)
        w = checks.prepare(weights, tensors)
        for case, given, want in zip(chosen, inputs, wants, strict=True):
            sms, tiles = work.cases[case]
            code.resize(sms)
            row, wrong = checks.numbers(case, w, given, want)
            closely = not tiles <= looked_at
            if closely:
                wrong += checks.bad_tokens(case, w, given) + checks.replayed(case, w, replays, device)
                looked_at |= tiles
            about = {"case": str(case), "mode": case.mode, "sms": sms, "closely": closely, "tiles": sorted(tiles)}
            rows.append(about | row | {"wrong": wrong})
            errors += [f"{case} on {sms} SMs: {what}" for what in wrong]
    return rows, errors


def run_beyond(code: Sm120Code, sms: int, device: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The same for experts whose weights begin behind 2**31 bytes."""
    code.resize(sms)
    layer, rows, errors = cases.BEYOND, [], []
    tensors = checks.random_weights(layer, "mxfp4", device)
    assert all((layer.experts - LAST) * t[0].numel() > 2**31 for t in (tensors[0], tensors[2]))
    last = tuple(t[-LAST:].clone() for t in tensors)
    w = checks.prepare("mxfp4", tensors)
    for case in (Case(layer, tokens, mode) for mode in cases.MODES for tokens in BEYOND_TOKENS):
        row, wrong = checks.beyond_32_bits(case, w, last, device)
        tiles = sorted(cases.tile_of(s) for s in cases.steps(case, device))
        rows.append({"case": str(case), "mode": case.mode, "sms": sms, "tiles": tiles} | row | {"wrong": wrong})
        errors += [f"{case}: {what}" for what in wrong]
    return rows, errors


def tile_rows(work: Work, made: Mapping[tuple[Any, ...], Made], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each tile in use: on which sizes of GPU, what was run, the largest errors, what was replaced in its code."""
    found = []
    for tile in sorted(set().union(*work.in_use.values())):
        ran = [r for r in rows if tile in r["tiles"]]
        kernels = [made[key] for key, s in work.steps.items() if key in made and cases.tile_of(s) == tile]
        replaced: Counter[str] = Counter()
        for kernel in kernels:
            replaced.update(kernel.replaced)
        errors = {m: [r["error"] for r in ran if r["mode"] == m] for m in cases.MODES}
        found.append(
            {
                "tile": tile,
                "sms": [n for n, used in work.in_use.items() if tile in used],
                "cases": len(ran),
                "kernels": len(kernels),
                "closely": any(r["closely"] for r in ran),
                "error": {mode: max(found) for mode, found in errors.items() if found},
                "replaced": dict(replaced),
                "ok": bool(ran and kernels) and not any(r["wrong"] for r in ran),
            }
        )
    return found


def prove(
    arch: str, sizes: list[int], replays: int, lean: bool, breaks: str | None, workers: int,
    progress: Callable[[str], None], device: Any = "cuda:0",
) -> dict[str, Any]:  # fmt: skip
    """The document of one architecture with the Triton of this process; `errors` says what failed.

    Raises:
        WrongGpu: this is no SM90.
    """
    import triton

    document: dict[str, Any] = {"triton": triton.__version__, "arch": arch, "sms": sizes, "replays": replays}
    with (
        tempfile.TemporaryDirectory(prefix="sm120-code-") as cache,
        Sm120Code(arch, sizes[0], Path(cache), breaks) as code,
    ):
        work = Work()
        for sms in sizes:
            code.resize(sms)
            work.add(cases.enumerate_cases(cases.LAYERS, sms, device), sms, device, lean)
        progress(f"{len(work.used)} tiles, {len(work.cases)} cases; compiling {len(work.steps)} kernels")
        errors = compile_all(work.steps.values(), workers)
        rows: list[dict[str, Any]] = []
        beyond: list[dict[str, Any]] = []
        if not errors:
            rows, errors = run_cases(code, work, replays, device, progress)
            progress(f"{cases.BEYOND.name}: offsets")
            beyond, more = run_beyond(code, sizes[0], device)
            errors += more
        tiles = tile_rows(work, code.made, rows)
        missing = [t["tile"] for t in tiles if not (t["cases"] and t["kernels"])]
        errors += [f"{tile}: in use and not run" for tile in missing]
        if breaks:
            document["broken"] = {"what": breaks, "places": sum(m.broken for m in code.made.values())}
    return document | {"tiles": tiles, "cases": rows, "beyond_32_bits": beyond, "errors": errors}


def main(argv: list[str] | None = None) -> int:
    """Exit status 0: all good, 1: something is wrong, 2: no SM90, or wrong usage."""
    parser = argparse.ArgumentParser(prog="proof", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--arch", choices=ARCHITECTURES, default="sm_120a")
    parser.add_argument("--sms", type=int, nargs="+", default=list(SMS), help="SMs to plan for (188 170 84 48)")
    parser.add_argument("--replays", type=int, default=1000, help="of a CUDA graph for each tile (1000)")
    parser.add_argument("--lean", action="store_true", help="each tile on one layer only")
    parser.add_argument("--break", dest="breaks", choices=mutations.BREAKS, help="put a fault in: this must be red")
    parser.add_argument("--workers", type=int, default=min(8, len(os.sched_getaffinity(0))), help="compiling threads")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the document as JSON")
    a = parser.parse_args(argv)

    def progress(line: str) -> None:
        print(f"{a.arch}: {line}", file=sys.stderr, flush=True)

    try:
        document = prove(a.arch, a.sms, a.replays, a.lean, a.breaks, a.workers, progress)
    except WrongGpu as error:
        print(error, file=sys.stderr)
        return 2
    if a.out:
        a.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for fault in document["errors"]:
        progress(f"ERROR {fault}")
    print(f"Triton {document['triton']} {a.arch}: {len(document['tiles'])} tiles, {len(document['cases'])} cases, "
          f"{len(document['errors'])} errors")  # fmt: skip
    return 1 if document["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
