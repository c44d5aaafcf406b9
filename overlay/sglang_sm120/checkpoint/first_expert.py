"""Format of the first routed expert of a checkpoint's target or draft, from one shard's header.

For processes that need to know no more. SGLang looks at one expert too, the index's first, whoever's it is.
"""

from __future__ import annotations

from pathlib import Path

from sglang_sm120.checkpoint import drafts, headers, survey
from sglang_sm120.checkpoint.expert_formats import Kind, kind_of


def kind(directory: Path, draft: bool) -> Kind | None:
    """The format; None where the directory has no such expert.

    Raises:
        CheckpointError: config.json, the index or the header cannot be read.
    """
    layers = drafts.layers_of(headers.configuration(directory)[1])
    placed = headers.index(directory)
    if placed is None:
        placed = {n: file for file in headers.shards(directory, None) for n in headers.tensor_headers(file)}
    first = None
    for name, file in placed.items():
        part = survey.part_of(name)
        if part is not None and part.name == "w1.weight" and drafts.is_draft(part.block, layers) == draft:
            first = part, file
            break
    if first is None:
        return None
    block = {}
    for name, entry in headers.tensor_headers(first[1]).items():
        part = survey.part_of(name)
        if part is not None and (part.block, part.expert) == (first[0].block, first[0].expert):
            block[part.name] = entry
    return kind_of(block) if block else None
