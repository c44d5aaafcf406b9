"""A MODEL of the kernel's time on SM120 and SM121 cards. Nothing here was measured on such a card.

The largest of three bounds, plus fixed terms:
  DRAM    bytes of the experts hit, of the input and of the output, over the card's datasheet bandwidth
  issue   weights x thread-instructions per weight over the card's issue slots
  MMA     operations, padded to the token tile, over the dense rate of the mode
  fixed   three launches and the pipeline's fill per product, the same 2.5 us each as a rough allowance
A bound says what a card cannot do better than; how near the kernel comes is for `sglang-sm120 selftest` to measure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

LABEL = "a model, not a measurement"
FIXED_US = 2.5 * 3


@dataclass(frozen=True)
class Card:
    """A product, by its vendor's figures or what follows from them.

    Attributes:
        sms: multiprocessors.
        hz: boost clock.
        bytes_per_s: memory bandwidth.
        bf16, mxfp8: dense FLOP/s with float32 sums.
        pattern: what the driver's name of it matches.
    """

    sms: int
    hz: float
    bytes_per_s: float
    bf16: float
    mxfp8: float
    pattern: str


CARDS = {
    "RTX PRO 6000 (Workstation)": Card(188, 2.617e9, 1.792e12, 503.8e12, 1007.6e12, r"RTX PRO 6000.*Workstation"),
    "RTX PRO 6000 (Server)": Card(188, 2.4e9, 1.597e12, 480e12, 960e12, r"RTX PRO 6000.*Server"),
    "RTX 5090": Card(170, 2.407e9, 1.792e12, 209.5e12, 838e12, r"RTX 5090$"),
    "GB10 (DGX Spark)": Card(48, 2.4e9, 0.273e12, 62.5e12, 250e12, r"GB10\b"),
}
# Thread-instructions of the main loop per weight by token tile, the worst for sm_120a in
# benchmarks/receipts/sm120-machine-code.json.
INSTRUCTIONS: dict[str, dict[int, float]] = {
    "bf16": {8: 2.76, 16: 3.45, 32: 4.67},
    "mxfp8": {8: 1.86, 32: 2.43, 64: 3.25},
}


@dataclass(frozen=True)
class Times:
    """The terms of the model, in microseconds."""

    dram_us: float
    issue_us: float
    mma_us: float
    fixed_us: float = FIXED_US

    @property
    def model_us(self) -> float:
        return max(self.dram_us, self.issue_us, self.mma_us) + self.fixed_us

    def document(self) -> dict[str, float]:
        return asdict(self) | {"model_us": self.model_us}


def card_of(gpu: str, sms: int) -> str | None:
    """The name in CARDS of a whole GPU; None for others, for a slice of one, and for a Max-Q, whose clocks differ."""
    for name, card in CARDS.items():
        if re.search(card.pattern, gpu) and "Max-Q" not in gpu and card.sms == sms:
            return name
    return None


def experts_hit(experts: int, routes: int) -> float:
    """Distinct experts among this many uniform independent routes, in the mean."""
    return experts * (1 - (1 - 1 / experts) ** routes)


def times(
    card: str,
    layer: tuple[int, int, int, int],
    tokens: int,
    mode: str,
    hit: float | None = None,
    instructions: Mapping[int, float] | None = None,
) -> Times:
    """The model's terms for one layer on a card.

    Args:
        card: a name in CARDS.
        layer: experts, hidden, intermediate of one rank, top-k.
        tokens: of the batch.
        mode: `bf16` or `mxfp8`.
        hit: experts that the batch hits; what uniform routing hits in the mean, if None.
        instructions: per weight by token tile; INSTRUCTIONS if None.
    """
    experts, hidden, inter, top_k = layer
    c, routes = CARDS[card], tokens * top_k
    hit = experts_hit(experts, routes) if hit is None else hit
    width = token_tile(layer, tokens, mode, c.sms)
    table = instructions or INSTRUCTIONS[mode]
    weights = min(routes, hit + routes / width) * 3 * hidden * inter
    moved = hit * 3 * hidden * inter * 17 / 32 + 4 * tokens * hidden
    return Times(
        dram_us=moved / c.bytes_per_s * 1e6,
        issue_us=weights * table.get(width, max(table.values())) / (c.sms * 128 * c.hz) * 1e6,
        mma_us=2 * weights * width / (c.bf16 if mode == "bf16" else c.mxfp8) * 1e6,
    )


def token_tile(layer: tuple[int, int, int, int], tokens: int, mode: str, sms: int) -> int:
    """Tokens of a program, by the kernel's own schedule for SM120."""
    from sglang_sm120.kernels.sm120.fp4_moe.host import schedule

    experts, hidden, inter, top_k = layer
    fp8 = mode == "mxfp8"
    return schedule.plan(schedule.Work(tokens, top_k, experts, hidden, inter, fp8, fp8), sms, False).gate_up.tokens
