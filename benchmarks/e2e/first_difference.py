"""Which module of the model is the first whose output for a token depends on what else is in the batch.

    python benchmarks/e2e/first_difference.py --out DIR [--kind hybrid-nvfp4] [--limit SECONDS]

Needs a GPU. One server with batch-invariant experts and SGLang's deterministic inference, without CUDA graphs, writes
the output of every leaf module of every forward (SGLang's own --debug-tensor-dump-output-folder). One prompt is asked
alone, then among 16, then with its own answer behind it; rows of the same token at the same place are compared bit for
bit, module by module in the order in which they ran. DIR/first-difference.json is the receipt.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "overlay"))  # only the server needs it installed
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.e2e import checkpoints, client
from benchmarks.e2e.results import gpu, versions
from benchmarks.e2e.servers.launches import DETERMINISTIC, EAGER, INVARIANT, Launch
from benchmarks.e2e.servers.server import Server
from benchmarks.reports.commit import commit

PROMPTS = [client.prompt(24, 400 + n) for n in range(16)]  # the first is the one that is compared
NEW_TOKENS = 9
INFO = "model.forward_batch_info."
SETTLE = 2.0  # seconds for the last file of a request


def passes(folder: Path, seen: set[Path]) -> list[Path]:
    """The files of forwards since the last call, which are then among the seen ones."""
    time.sleep(SETTLE)
    found = sorted(set(folder.rglob("Pass*.pt")) - seen)
    seen.update(found)
    return found


def rows_of(file: Path, tokens: dict[int, int]) -> list[tuple[int, int, dict[str, Any]]]:
    """(place, row, outputs) of each token of the request that a forward holds; `tokens`: place -> token id.

    A row is the request's where the rows from it back to the request's first place in this forward are its tokens.
    """
    import torch

    outputs = torch.load(file, map_location="cpu", weights_only=False)
    ids, places = (outputs.get(INFO + name) for name in ("input_ids", "positions"))
    if ids is None or places is None:
        return []
    ids, places = ids.flatten().tolist(), places.flatten().tolist()
    found, mine = [], False
    for row, (token, place) in enumerate(zip(ids, places, strict=False)):
        follows = row > 0 and places[row - 1] == place - 1
        mine = tokens.get(place) == token and (mine or not follows)
        if mine:
            found.append((place, row, outputs))
    return found


def row(output: Any, number: int, count: int) -> list[Any]:
    """A token's part of a module's output: of every tensor with a row for each token."""
    tensors = output if isinstance(output, list) else [output]
    return [t[number] for t in tensors if hasattr(t, "shape") and t.ndim and t.shape[0] == count]


def first_difference(one: dict[str, Any], row_one: int, other: dict[str, Any], row_other: int) -> tuple[str, float]:
    """The first module whose output differs, and by how much at most; ("", 0) where none does."""
    import torch

    counts = [len(found[INFO + "input_ids"].flatten()) for found in (one, other)]
    for name in one:
        if not name.startswith("model.") or name.startswith(INFO) or name not in other:
            continue
        parts = zip(row(one[name], row_one, counts[0]), row(other[name], row_other, counts[1]), strict=False)
        for a, b in parts:
            if a.shape == b.shape and not torch.equal(a, b):
                return name, float((a.double() - b.double()).abs().max())
    return "", 0.0


def compared(alone: list[Path], other: list[Path], tokens: dict[int, int]) -> list[dict[str, Any]]:
    """For forwards that read a prompt and for those of one token: which modules were first, and how often."""
    by_place = {place: (number, found) for f in alone for place, number, found in rows_of(f, tokens)}
    counted: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    largest: dict[tuple[str, str], float] = {}
    for file in other:
        for place, number, found in rows_of(file, tokens):
            if place not in by_place:
                continue
            own, outputs = by_place[place]
            phases = [
                "prefill" if len(o[INFO + "positions"].flatten()) > len(PROMPTS) else "decode" for o in (outputs, found)
            ]
            phase = " against ".join(dict.fromkeys(phases))
            name, apart = first_difference(outputs, own, found, number)
            counted[phase][name] += 1
            largest[phase, name] = max(apart, largest.get((phase, name), 0.0))
    return [
        {"phase": phase, "module": name or "none", "tokens": n, "largest": largest[phase, name]}
        for phase, modules in counted.items()
        for name, n in modules.most_common()
    ]


def ask(server: Server, folder: Path) -> dict[str, Any]:
    """The three requests; what was first in each comparison."""
    seen: set[Path] = set()
    passes(folder, seen)
    answer = client.generate(server.url, PROMPTS[0], NEW_TOKENS)
    text = PROMPTS[0] + answer["ids"]
    tokens = dict(enumerate(text[:-1]))
    alone = passes(folder, seen)
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        list(pool.map(lambda ids: client.generate(server.url, ids, NEW_TOKENS), PROMPTS))
    together = passes(folder, seen)
    client.generate(server.url, text[:-1], 1)
    prefilled = passes(folder, seen)
    again = client.generate(server.url, PROMPTS[0], NEW_TOKENS)
    repeated = passes(folder, seen)
    return {
        "same answer again": again.get("ids") == answer["ids"],
        "alone against itself": compared(alone, repeated, tokens),
        "alone against among 16": compared(alone, together, tokens),
        "decoded against read as a prompt": compared(alone, prefilled, tokens),
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", type=Path, help="where checkpoints are and go; default OUT/models")
    parser.add_argument("--caches", type=Path, help="where compiled kernels are kept; default OUT/caches")
    parser.add_argument("--kind", default="hybrid-nvfp4", choices=("hybrid-nvfp4", "mxfp4"))
    parser.add_argument("--no-flag", action="store_true", help="without SGLang's deterministic inference")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds until the server is ready")
    parser.add_argument("--port", type=int, default=23000)
    parser.add_argument("--commit")
    a = parser.parse_args()
    models, folder = a.models or a.out / "models", a.out / "forwards"
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints.write(models, a.kind, 0, ())
    flags = (*(() if a.no_flag else DETERMINISTIC), *EAGER, "--debug-tensor-dump-output-folder", str(folder))
    launch = Launch("first-difference", a.kind, "every module's output", env=INVARIANT, flags=flags)
    server = Server(launch, checkpoints.path(models, a.kind, 0), a.port, a.out, a.caches or a.out / "caches")
    document = {"schema": 1, "kind": "first-difference", "date": time.strftime("%Y-%m-%d", time.gmtime())}
    document |= {"commit": a.commit or commit(), "gpu": gpu(["0"]), "versions": versions()}
    document |= {"command": server.command, "env": launch.env}
    try:
        ready = server.wait_ready(time.monotonic() + a.limit)
        if ready is None:
            print(f"the server was not ready within {a.limit:.0f} s; its log is {server.log}")
            return 1
        document["found"] = ask(server, folder)
    finally:
        server.stop()
    (a.out / "first-difference.json").write_text(json.dumps(document, indent=1) + "\n")
    for question, rows in document["found"].items():
        for found in rows if isinstance(rows, list) else [{"phase": "", "module": rows, "tokens": "", "largest": 0}]:
            print(f"{question:34} {found['phase']:24} {found['tokens']:>4} {found['module']} {found['largest']:.3g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
