"""One pass over the headers of a checkpoint: its routed experts block by block, its other tensors, their bytes.

No torch, no SGLang, no weights. Experts have the names of DeepSeek-V4's release or those of Hugging Face's models; here
they have the former.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_sm120.checkpoint import headers
from sglang_sm120.checkpoint.expert_formats import Block
from sglang_sm120.checkpoint.headers import CheckpointError

_ROUTED = re.compile(
    r"^(?:(?:language_)?model\.)*(?P<block>(?:layers|mtp)\.[0-9]{1,6})\.(?:ffn|mlp)\.experts\."
    r"(?P<expert>[0-9]{1,6})\.(?P<projection>[^.]+)\.(?P<what>.+)$"
)
_BLOCK = re.compile(r"^(?:(?:language_)?model\.)*(?P<block>(?:layers|mtp)\.[0-9]{1,6})\.")
_PROJECTIONS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_WEIGHTS = ("w1.weight", "w2.weight", "w3.weight")
_HEADS = ("head.weight", "lm_head.weight")
_SCALES = ("w1.scale", "w1.weight_scale_inv")
_OF_ACTIVATIONS = ".input_scale"  # which not every kernel needs, so an expert may lack it


@dataclass(frozen=True)
class Part:
    """A tensor of a routed expert: its block (`layers.0`), the expert's number, which part (`w1.weight`) it is."""

    block: str
    expert: int
    name: str


@dataclass(frozen=True)
class Place:
    """Where a tensor's bytes are."""

    file: Path
    begin: int
    end: int


@dataclass(frozen=True)
class Experts:
    """The routed experts of a block.

    Attributes:
        usual: part of an expert (`w1.weight`, …) -> header entry, as most experts have them.
        numbers: the experts that are there, in order.
        unlike: the others' parts, by expert.
        input_scales: whether all of them have the scales of their activations.
        scale: where the first one's scales of w1 are; None without any.
    """

    usual: Block
    numbers: tuple[int, ...] = (0,)
    unlike: Mapping[int, Block] = field(default_factory=dict)
    input_scales: bool = True
    scale: Place | None = None


@dataclass(frozen=True)
class Survey:
    """What the headers of a checkpoint say.

    Attributes:
        blocks: `layers.0`, `mtp.0`, … -> its routed experts, in the order of their numbers.
        others: names of all other tensors.
        expert_bytes, other_bytes: of a block's tensors; "" is no block.
        first: block of the first expert in the index, or in the first shard without one: where SGLang looks.
        head: type of the output head, as safetensors writes it; None without one.
    """

    blocks: Mapping[str, Experts]
    others: frozenset[str] = frozenset()
    expert_bytes: Mapping[str, int] = field(default_factory=dict)
    other_bytes: Mapping[str, int] = field(default_factory=dict)
    first: str | None = None
    head: str | None = None

    @property
    def is_part(self) -> bool:
        """Nothing but experts: written for planning. What is not there proves nothing."""
        return not self.others

    def has(self, block: str, rest: str) -> bool:
        """Whether a block has a tensor of that name, under either of a block's names."""
        return not self.others.isdisjoint((f"{block}.{rest}", f"model.{block}.{rest}"))


def read(directory: Path) -> Survey:
    """Read each header once.

    Raises:
        CheckpointError: the index or a header cannot be read, a shard is absent or cut, or lacks what the index places
            there.
    """
    placed = headers.index(directory)
    wanted: dict[Path, set[str]] = {}
    for name, file in (placed or {}).items():
        wanted.setdefault(file, set()).add(name)
    collected = _Collected()
    collected.look(placed or ())
    for file in headers.shards(directory, placed):
        entries = headers.tensor_headers(file)
        lacking = wanted.get(file, set()) - entries.keys()
        if lacking:
            raise CheckpointError(f"{file} lacks {min(lacking)}, which {headers.INDEX} places there; download it again")
        collected.look(entries)
        for name, entry in entries.items():
            if placed is None or placed.get(name, file) == file:  # of two, the one that the index means
                collected.add(name, entry, file)
    return collected.survey()


def part_of(name: str) -> Part | None:
    """Whose tensor a name is; None if no routed expert's."""
    found = _ROUTED.search(name)
    if found is None:
        return None
    projection = _PROJECTIONS.get(found["projection"], found["projection"])
    return Part(found["block"], int(found["expert"]), f"{projection}.{found['what']}")


class _Collected:
    """Headers seen so far, each kind of entry kept once."""

    def __init__(self) -> None:
        self.experts: dict[str, dict[int, dict[str, Mapping[str, Any]]]] = {}
        self.places: dict[str, tuple[int, Place]] = {}
        self.others: set[str] = set()
        self.bytes: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self.entries: dict[str, Mapping[str, Any]] = {}
        self.first: str | None = None
        self.head: str | None = None

    def look(self, names: Iterable[str]) -> None:
        """Note the first expert's block."""
        if self.first is None:
            parts = filter(None, map(part_of, names))
            self.first = next((part.block for part in parts if part.name in _WEIGHTS), None)

    def add(self, name: str, entry: Mapping[str, Any], file: Path) -> None:
        begin, end = entry["data_offsets"]
        part = part_of(name)
        if part is None:
            block = _BLOCK.search(name)
            self.others.add(name)
            if name in _HEADS:
                self.head = str(entry["dtype"])
            self.bytes[1][block["block"] if block else ""] += end - begin
            return
        facts = {"dtype": entry["dtype"], "shape": entry.get("shape")}
        parts = self.experts.setdefault(part.block, {}).setdefault(part.expert, {})
        parts[part.name] = self.entries.setdefault(repr(facts), facts)
        self.bytes[0][part.block] += end - begin
        if part.name in _SCALES and part.expert < self.places.get(part.block, (part.expert + 1,))[0]:
            self.places[part.block] = part.expert, Place(file, begin, end)

    def survey(self) -> Survey:
        blocks = {block: self._experts(block) for block in sorted(self.experts, key=_order)}
        return Survey(blocks, frozenset(self.others), dict(self.bytes[0]), dict(self.bytes[1]), self.first, self.head)

    def _experts(self, block: str) -> Experts:
        experts = dict(sorted(self.experts[block].items()))
        kinds = {expert: _kind(parts) for expert, parts in experts.items()}
        usual = Counter(kinds.values()).most_common(1)[0][0]
        example = next(expert for expert, kind in kinds.items() if kind == usual)
        return Experts(
            experts[example],
            tuple(experts),
            {expert: experts[expert] for expert, kind in kinds.items() if kind != usual},
            all(f"{p}{_OF_ACTIVATIONS}" in parts for parts in experts.values() for p in ("w1", "w2", "w3")),
            self.places.get(block, (0, None))[1],
        )


def _order(block: str) -> tuple[str, int]:
    name, _, number = block.partition(".")
    return name, int(number)


def _kind(parts: Block) -> frozenset[tuple[str, int]]:
    """The same for two experts of the same tensors; entries are kept once, so their identity will do."""
    return frozenset((part, id(entry)) for part, entry in parts.items() if not part.endswith(_OF_ACTIVATIONS))
