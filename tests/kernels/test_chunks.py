"""A prefill longer than a chunk: the layer goes through its workspace several times and gives each token its own."""

import pytest
import torch

from sglang_sm120.kernels.sm120 import fp4_moe as moe
from sglang_sm120.kernels.sm120.fp4_moe.host import schedule

EXPERTS, HIDDEN, INTER = 2, 64, 32
CHUNK = 16  # instead of thousands, for which Triton's interpreter takes a minute


def draw(seed):
    """A layer, and a call of five tokens more than two chunks, each of which goes to one expert."""
    g = torch.Generator().manual_seed(seed)
    layer = []
    for rows, columns in ((2 * INTER, HIDDEN), (HIDDEN, INTER)):
        layer.append(torch.randint(0, 256, (EXPERTS, rows, columns // 2), generator=g, dtype=torch.uint8))
        layer.append(torch.randint(119, 124, (EXPERTS, rows, columns // 32), generator=g, dtype=torch.uint8))
    tokens = 2 * CHUNK + 5
    x = torch.randn(tokens, HIDDEN, generator=g).bfloat16()
    ids = torch.randint(0, EXPERTS, (tokens, 1), generator=g, dtype=torch.int32)
    return layer, x, ids, torch.rand(tokens, 1, generator=g) + 0.1


@pytest.mark.parametrize("activation", ["bf16", "mxfp8"])
def test_a_prefill_longer_than_a_chunk_is_the_oracle(device, activation, monkeypatch):
    """The chunks are looked at apart: five wrong tokens would hide in the mean over all."""
    monkeypatch.setattr(schedule, "chunk_tokens", lambda *_: CHUNK)
    layer, x, ids, weights = (part for part in draw(0))
    layer, (x, ids, weights) = [t.to(device) for t in layer], (t.to(device) for t in (x, ids, weights))
    want = moe.reference.mxfp4_moe(x, *layer, ids, weights, activation="exact" if activation == "bf16" else activation)
    got = moe.fp4_moe(x, moe.prepare_mxfp4(*(t.clone() for t in layer)), ids, weights, activation=activation)
    for part in (slice(start, start + CHUNK) for start in range(0, len(x), CHUNK)):
        error = float((got[part].double() - want[part]).norm() / want[part].norm())
        assert error <= (3e-3 if activation == "bf16" else 2e-2)
