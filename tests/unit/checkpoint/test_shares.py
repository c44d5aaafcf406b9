"""How experts are dealt out to ranks, as SGLang's FusedMoE asserts it."""

import pytest

from sglang_sm120.checkpoint import shares

OF = "expected a divisor of n_routed_experts in config.json"


@pytest.mark.parametrize(
    ("experts", "ep", "redundant", "draft", "says"),
    [
        (256, 8, 0, None, []),
        (154, 4, 2, None, []),  # pruned, made even by two copies
        (180, 8, 12, None, []),
        (256, 8, 16, 256, []),
        (384, 8, 0, 128, []),
        (256, 8, 2, None, [f"{OF} + --ep-num-redundant-experts, 256 + 2"]),
        (256, 3, 0, 256, [f"{OF}, which is 256"]),
        (154, 4, 2, 154, ["expected a divisor of the draft's 154 experts, which has no more"]),
        (384, 16, 0, 120, ["expected a divisor of the draft's 120 experts"]),
        (130, 4, 1, 130, [f"{OF} + --ep", "draft's 130 experts"]),
    ],
)
def test_uneven(experts, ep, redundant, draft, says):
    found = shares.uneven(experts, ep, redundant, draft)
    assert len(found) == len(says)
    for line, part in zip(found, says, strict=True):
        assert line.startswith(f"--ep-size is {ep}; ")
        assert part in line
