"""What `auto` follows in a launch: this GPU's table of runners, and what the launch sends through a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sglang_sm120 import gpu
from sglang_sm120.checkpoint import global_scales
from sglang_sm120.kernels.sm120.tile_tables import NoHomeError
from sglang_sm120.moe import measured, runner_tables
from sglang_sm120.moe.measured import BATCHES, Choice, Mix
from sglang_sm120.moe.runner_tables import EQUAL_SCALES, RIGHT, Layer, Place, Table
from sglang_sm120.settings import AUTO, RUNNER, AutoRunner
from sglang_sm120.upstream import releases
from sglang_sm120.upstream.server_flags import Role

# Names of SGLang's flags, newest first.
_BATCHES = ("cuda_graph_bs_decode", "cuda_graph_bs")
_LARGEST = ("cuda_graph_max_bs_decode", "cuda_graph_max_bs", "max_running_requests")
_CHUNK, _STEPS = 8192, 3  # SGLang's own choices for DeepSeek on a large GPU
_LARGEST_BATCH = 512


@dataclass(frozen=True)
class Auto:
    """The table that holds here, or why there is none, and the mix of each role.

    `equal_scales` says whether gate and up have the same global scale in all experts of the launch's checkpoint; it is
    asked only where a runner that takes that for granted was the fastest.
    """

    table: Mapping[Layer, Mapping[str, runner_tables.Row]] | None = None
    problem: str = ""
    mixes: Mapping[Role, Mix] = field(default_factory=dict)
    equal_scales: Callable[[], bool | None] = lambda: None

    def choose(self, layer: Layer, role: Role, fixed: str, allowed: Sequence[str]) -> Choice:
        """The runner of a layer; None with the reason where the table does not say."""
        rows = (self.table or {}).get(layer)
        if rows is None:
            problem = self.problem or "this layer was not measured here"
            command = f"`sglang-sm120 tune --model-path DIR --tp {layer.tp}"
            return Choice(None, why=f"{problem}; {command}{f' --ep {layer.ep}' if layer.ep > 1 else ''}` does")
        mix = self.mixes.get(role, Mix())
        as_right = {r: replace(row, status=RIGHT) if row.status == EQUAL_SCALES else row for r, row in rows.items()}
        hopeful = measured.choose(as_right, allowed, fixed, mix)
        if hopeful.runner and rows[hopeful.runner].status == EQUAL_SCALES and self.equal_scales():
            return hopeful
        return measured.choose(rows, allowed, fixed, mix)


def of_launch(view: Any) -> Auto:
    """What a launch follows, from its flags as far as they are resolved."""
    table, problem = held_here()
    mixes: dict[Role, Mix] = {role: mix_of(view, role) for role in ("target", "draft")}
    real = view.load_format != "dummy"
    return Auto(table, problem, mixes, lambda: global_scales.are_equal(Path(view.model_path)) if real else None)


def held_here() -> tuple[Table | None, str]:
    """This GPU's table for the installed SGLang; or None, and why launches have none."""
    card, sglang = gpu.detect(), releases.installed()
    if card is None or sglang is None:
        return None, "runners were not measured here"
    here = Place(card.name, releases.base(sglang))
    try:
        return runner_tables.read(runner_tables.path_for(here), here), ""
    except (FileNotFoundError, NotADirectoryError, NoHomeError):
        return None, "runners were not measured on this GPU with this SGLang"
    except (OSError, ValueError) as error:
        return None, f"the table of runners is not used: {error}"


def mix_of(view: Any, role: Role) -> Mix:
    """Batch sizes of the CUDA graphs, tokens of each sequence in a step, and the chunk of a prefill."""
    given = next((found for name in _BATCHES if (found := getattr(view, name, None))), None)
    limits = [found for name in _LARGEST if (found := getattr(view, name, None))]
    largest = min([*limits, _LARGEST_BATCH])
    batches = tuple(b for b in given or BATCHES if b <= largest) or (largest,)
    drafted: tuple[int, ...] = (1,)
    if view.speculative_algorithm:
        steps = getattr(view, "speculative_num_steps", None) or _STEPS
        verified = getattr(view, "speculative_num_draft_tokens", None) or steps + 1
        # A draft proposes token by token after it has read what was verified; with one step the reading is all.
        chain = (getattr(view, "speculative_eagle_topk", None) or 1,) if role == "draft" and steps > 1 else ()
        drafted = (*chain, verified)
    chunk = getattr(view, "chunked_prefill_size", None)
    return Mix(batches, drafted, chunk if chunk and chunk > 0 else _CHUNK)


def described(setting: AutoRunner) -> list[str]:
    """What `auto` means here, a line for each layer that was measured, for a launch of the usual batch sizes."""
    if setting == "fixed":
        return [f"{AUTO.name}=fixed: launches follow no table of runners"]
    table, problem = held_here()
    if not table:
        return [f"{problem or 'no layer was measured here'}; `sglang-sm120 tune --model-path DIR --tp N` does"]
    lines = []
    for layer, rows in table.items():
        fixed = "flashinfer_mxfp4" if layer.format == "mxfp4" and "flashinfer_mxfp4" in rows else RUNNER
        choice = measured.choose(rows, list(rows), fixed, Mix())
        lines.append(f"{layer}: {choice.runner or fixed} ({choice.says()})")
        lines += [f"{layer}: {runner} is out, {why}" for runner, why in choice.out.items()]
    return lines
