"""`sglang-sm120 tune`: tiles measured on this GPU for the layers of a checkpoint, in a table that the kernel reads.

Only times change: every tile that is tried gives the same bits. `check` says whether a launch would use the table.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sglang_sm120 import __version__, files
from sglang_sm120.checkpoint import inspection
from sglang_sm120.checkpoint.shares import expert_width
from sglang_sm120.commands import interrupts
from sglang_sm120.commands.tune import tables
from sglang_sm120.commands.tune.jobs import expert_counts
from sglang_sm120.kernels.sm120 import tile_tables
from sglang_sm120.kernels.sm120.tile_tables import FORMATS, Machine, Shape, Table

SCHEMA = 1
DEFAULT_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NO_GPU = "tune measures, so it needs a CUDA GPU, and none is usable here"


class TuneError(ValueError):
    """Tuning cannot start; the message names the argument or file."""


def shapes_of(model: Path, tp: int, ep: int = 1) -> list[Shape]:
    """Routed experts that a rank holds under `--tp` and `--ep`: the target's, then the draft's where they differ.

    The draft's alone of an FP8 target.

    Raises:
        checkpoint.CheckpointError: the checkpoint cannot be read.
        TuneError: it has no FP4 experts, or tp and ep do not divide them.
    """
    found = inspection.read(model)
    facts, draft_alone = found.checkpoint, found.checkpoint.kind == "fp8" and found.draft_kind == "mxfp4"
    if facts.kind not in ("mxfp4", "hybrid-nvfp4") and not draft_alone:
        raise TuneError(f"{model} has no MXFP4 or NVFP4 experts ({facts.kind}); give --shapes")
    sizes = (facts.experts, facts.hidden_size, facts.moe_intermediate_size, facts.top_k)
    if not all(type(n) is int and n > 0 for n in sizes):
        raise TuneError(f"{model / 'config.json'} does not say the experts' sizes; give --shapes")
    experts, hidden, inter, top_k = (int(str(n)) for n in sizes)
    if tp % ep or experts % ep:
        raise TuneError(f"--ep is {ep}; expected one that divides --tp {tp} and the {experts} experts")
    columns = expert_width(inter, tp, ep)
    if inter % (tp // ep) or columns % 32:
        raise TuneError(f"--tp is {tp}; expected one that cuts the experts' width {inter} into multiples of 32")
    own = expert_counts(model)
    drafted = (own["dspark_n_routed_experts"] or experts, own["dspark_num_experts_per_tok"] or top_k)
    of_target = "nvfp4" if facts.kind == "hybrid-nvfp4" else "mxfp4"
    target = Shape(experts // ep, hidden, columns, top_k, format=of_target)
    draft = Shape(drafted[0] // ep, hidden, columns, drafted[1])
    return [draft] if draft_alone else [target] if draft == target else [target, draft]


def shape(text: str) -> Shape:
    """`256,4096,1024,6` or `256,4096,1024,6,nvfp4`: a rank's experts, hidden, intermediate, top-k, format.

    ValueError says what is wrong.
    """
    words = text.split(",")
    experts = words.pop() if words[-1] in FORMATS else "mxfp4"
    try:
        numbers = [int(n) for n in words]
    except ValueError:
        numbers = []
    if len(numbers) != 4 or min(numbers) < 1:
        raise ValueError(f"{text!r} is not EXPERTS,HIDDEN,INTER,TOP_K, with {' or '.join(FORMATS)} after it or nothing")
    found = Shape(*numbers, format=experts)
    if found.hidden % 32 or found.inter % 32:
        raise ValueError(f"{text!r}: HIDDEN and INTER must be multiples of 32")
    if found.top_k > min(found.experts, 32):
        raise ValueError(f"{text!r}: TOP_K must be at most EXPERTS, and at most 32")
    return found


def tokens(text: str) -> tuple[int, ...]:
    """`1,2,4`: powers of two, since an entry serves the counts above half of its own. ValueError otherwise."""
    try:
        numbers = tuple(int(n) for n in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or any(n < 1 or n & (n - 1) for n in numbers):
        raise ValueError(f"{text!r} is not a list of powers of two, as in 1,2,4")
    return numbers


def usable_device() -> tuple[Any, Machine] | None:
    """The CUDA device of this process and what its table is keyed by; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    from sglang_sm120.kernels.sm120.fp4_moe.host import tuning

    device = torch.device("cuda", torch.cuda.current_device())
    return device, tuning.machine(device)


def run(
    shapes: Sequence[Shape],
    counts: Sequence[int],
    minutes: float,
    routing: str = "uniform",
    out: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Search until done or out of time; goes on from the file that is there.

    Args:
        shapes, counts: experts of a rank, and numbers of tokens.
        minutes: at most this long.
        routing: `uniform`, or `speculative` (neighbouring tokens share experts).
        out: the file; where the kernel looks for it if None.
        say: gets lines about what is going on.

    Raises:
        TuneError: there is no GPU, or the file cannot be used.
        RuntimeError: torch's, out of memory among them.
    """
    found = usable_device()
    if found is None:
        raise TuneError(NO_GPU)
    device, machine = found
    path = out or _default_path(machine)
    table = _begun(path, machine, own=out is None, say=say)
    _must_be_writable(path)
    from sglang_sm120.commands.tune import search

    points = []
    for s, t in ((s, t) for s in shapes for t in counts):
        if search.covers(device, s, t):
            points.append((s, t))
        else:
            say(f"{s} with {t} tokens runs the kernel for many tokens, which has no tiles to choose")
    bar = Bar(60 * minutes)
    save = partial(tables.write, path)
    timer = search.GpuTimer(device, routing)
    try:
        table, complete = search.Search(timer, routing, 60 * minutes, save, bar).run(table, points)
    finally:
        bar.end()
    return _document(machine, path, table) | {"complete": complete, "routing": routing}


def _default_path(machine: Machine) -> Path:
    try:
        return tile_tables.path_for(machine)
    except tile_tables.NoHomeError as error:
        raise TuneError(f"{error}; or name a file with --out") from error


def _begun(path: Path, machine: Machine, own: bool, say: Callable[[str], None]) -> Table:
    """The table to go on with. What is there and is none is replaced where the file is ours, and refused elsewhere."""
    try:
        table = tile_tables.read(path, machine)
    except FileNotFoundError:
        return Table(machine)
    except OSError as error:
        raise TuneError(f"{path} cannot be read: {error.strerror}; name another file with --out") from error
    except ValueError as error:
        if not own:
            raise TuneError(f"--out {path} is there, and is not a table to go on with: {error}") from error
        say(f"{files.short(path)} is replaced: {error}")
        return Table(machine)
    say(f"going on with {files.short(path)}: {len(table.entries) + len(table.kept)} token counts are done")
    return table


def _must_be_writable(path: Path) -> None:
    """Before minutes are spent."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise TuneError(
            f"{path} cannot be written: {error.strerror}; name another file with --out, or set {tile_tables.HOME}"
        ) from error


def _document(machine: Machine, path: Path, table: Table) -> dict[str, Any]:
    try:
        used = path.absolute() == tile_tables.path_for(machine).absolute()
    except tile_tables.NoHomeError:
        used = False
    return {
        "schema": SCHEMA,
        "kind": "tune",
        "overlay": __version__,
        "machine": dataclasses.asdict(machine),
        "table": str(path),
        "used": used and bool(table.entries),
        "entries": list(table.entries),
        "kept": list(table.kept),
        "errors": [],
    }


def check(shapes: Sequence[Shape] = ()) -> dict[str, Any]:
    """Which table a launch here would use, and what it has for these shapes (all, if none are given)."""
    found = usable_device()
    document: dict[str, Any] = {"schema": SCHEMA, "kind": "tune-check", "overlay": __version__, "machine": None}
    document |= {"table": None, "used": False, "problem": None, "entries": [], "kept": [], "missing": [], "errors": []}
    if found is None:
        document["problem"] = "no CUDA GPU is usable here, so no table is used"
        return document
    _, machine = found
    document["machine"] = dataclasses.asdict(machine)
    try:
        path = tile_tables.path_for(machine)
        document["table"] = str(path)
        table = tile_tables.read(path, machine)
    except FileNotFoundError:
        document["problem"] = "there is no table for this machine; launches run the default tiles"
        return document
    except (OSError, ValueError) as error:
        document["errors"].append(f"launches ignore the table and run the default tiles: {error}")
        return document
    document["used"] = bool(table.entries)
    if not table.entries:
        document["problem"] = "the table has no tiles: the default ones are the fastest so far"
    rows = {"entries": table.entries, "kept": table.kept}
    for name, those in rows.items():
        document[name] = [r for r in those if not shapes or tile_tables.shape_of(r) in shapes]
    have = {tile_tables.shape_of(r) for those in rows.values() for r in those}
    document["missing"] = [str(s) for s in shapes if s not in have]
    return document


def render(document: dict[str, Any]) -> str:
    """For people; the table at most 60 columns wide."""
    lines = []
    if document["machine"]:
        m = document["machine"]
        lines.append(f"GPU     {m['gpu']}, {m['sms']} SMs, Triton {m['triton']}")
    if document["table"]:
        lines.append(f"table   {files.short(document['table'])}")
    if document["entries"] or document["kept"]:
        lines.append(f"  {'shape':<15} {'T':>4} {'gate_up':<10} {'down':<10} {'us':>7} {'default':>7}")
    for row in sorted(
        [*document["entries"], *document["kept"]], key=lambda r: (str(tile_tables.shape_of(r)), r["tokens"])
    ):
        tuned = "gate_up" in row
        tiles = [_tile(row[name]) if tuned else "default" for name in ("gate_up", "down")]
        us = f"{row.get('us', float('nan')):.1f}" if tuned else ""
        default = f"{row['default_us']:.1f}" if isinstance(row.get("default_us"), (int, float)) else ""
        lines.append(
            f"  {tile_tables.shape_of(row)!s:<15} {row['tokens']:>4} {tiles[0]:<10} {tiles[1]:<10} {us:>7} {default:>7}"
        )
    lines += tables.closing(document)
    if document["used"]:
        lines.append("Launches on this machine use this table.")
    return "\n".join(lines)


def _tile(numbers: Sequence[int]) -> str:
    rows, width, stages, warps, unroll = numbers
    return f"{rows}x{width}/{stages}/{warps}/{unroll}"


class Bar:
    """A progress bar with the time left, on stderr: one line that changes on a terminal, else a line a token count."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begun, self._seconds = clock, clock(), seconds
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._said: tuple[Any, int] | None = None

    def __call__(self, p: Any) -> None:
        interrupts.check()
        spent = self._clock() - self._begun
        share = (p.done + p.share) / p.total
        left = min(self._seconds, spent / share if share > 0.02 else self._seconds) - spent
        minutes, seconds = divmod(max(0, round(left)), 60)
        text = f"T={p.tokens} ({p.done + 1} of {p.total}), {p.won} won, {minutes}:{seconds:02d} left"
        if self._terminal:
            filled = int(16 * share)
            print(f"\r[{'#' * filled}{'-' * (16 - filled)}] {text:<40}", end="", file=sys.stderr, flush=True)
        elif self._said != (p.shape, p.tokens):
            print(f"tuning {p.shape} {text}", file=sys.stderr, flush=True)
        self._said = p.shape, p.tokens

    def end(self) -> None:
        if self._terminal and self._said:
            print(file=sys.stderr)
