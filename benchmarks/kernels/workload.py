"""Random layers, routings and timing shared by the kernel benchmarks. Needs a CUDA GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

DEVICE = "cuda"
RANKS = (1, 2, 4, 8)
MODELS = {  # experts, hidden, intermediate, top_k, tensor-parallel sizes
    "v4-flash": (256, 4096, 2048, 6, RANKS),
    "v4-pro": (384, 7168, 3072, 6, RANKS),
    "v4.1-flash": (384, 5120, 2304, 6, RANKS),
    "v4.1-dspark": (128, 5120, 2304, 3, RANKS),  # a stage of V4.1-Flash's draft
    "reap-144": (144, 4096, 2048, 6, RANKS[:1]),  # V4-Flash with experts pruned away
    "reap-160": (160, 4096, 2048, 6, RANKS[:1]),
    "reap-180": (180, 4096, 2048, 6, RANKS[:1]),
}
SHAPES = {  # experts, hidden, intermediate of one rank, top_k
    f"{model}-tp{tp}": (experts, hidden, inter // tp, top_k)
    for model, (experts, hidden, inter, top_k, ranks) in MODELS.items()
    for tp in ranks
}
ROUTINGS = ("uniform", "skewed", "speculative")
COLD_ROUTES = 64  # up to so many routes, the calls of one graph share no expert
HOTTEST = 24  # the skewed routing's hottest expert, as a multiple of the mean
Weights = tuple[torch.Tensor, ...]  # in the checkpoint's layout: 4 tensors of MXFP4, 6 of NVFP4
FORMATS = {"mxfp4": 4.25, "nvfp4": 4.5}  # bits of a weight with its share of the scales
Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def random_weights(experts: int, hidden: int, inter: int, weights: str = "mxfp4", seed: int = 0) -> Weights:
    """Checkpoint layout. With these scales (2**-8 .. 2**-5) a few percent of the gates and ups reach a clamp at 10.

    NVFP4: gate's and up's global scales are equal, because peers take gate's for both.
    """
    g = torch.Generator(device=DEVICE).manual_seed(seed)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, device=DEVICE, generator=g)

    if weights == "nvfp4":
        factor = 2.0**-6 * (0.75 + 0.5 * torch.rand(2, experts, device=DEVICE, generator=g))
        return (
            draw(0, 256, experts, 2 * inter, hidden // 2),
            draw(0x30, 0x41, experts, 2 * inter, hidden // 16),
            torch.stack([factor[0]] * 2, 1),
            draw(0, 256, experts, hidden, inter // 2),
            draw(0x30, 0x41, experts, hidden, inter // 16),
            factor[1],
        )
    return (
        draw(0, 256, experts, 2 * inter, hidden // 2),
        draw(119, 123, experts, 2 * inter, hidden // 32),
        draw(0, 256, experts, hidden, inter // 2),
        draw(119, 123, experts, hidden, inter // 32),
    )


def case(tokens: int, experts: int, hidden: int, top_k: int, routing: str = "uniform", seed: int = 0) -> Case:
    """x, topk_ids, topk_weights of one call. With few routes, calls of neighbouring seeds use different experts."""
    g = torch.Generator(device=DEVICE).manual_seed(1000 + seed)
    x = torch.randn(tokens, hidden, device=DEVICE, dtype=torch.bfloat16, generator=g)
    ids = {"uniform": uniform, "skewed": skewed, "speculative": speculative}[routing](tokens, experts, top_k, g)
    if tokens * top_k <= COLD_ROUTES:
        ids = apart(ids, experts, tokens * top_k * seed)
    weights = torch.rand(tokens, top_k, device=DEVICE, generator=g) + 0.1
    return x, ids.to(torch.int32).contiguous(), (weights / weights.sum(-1, keepdim=True)).float()


def uniform(tokens: int, experts: int, top_k: int, g: torch.Generator) -> torch.Tensor:
    """Experts drawn independently for each token; with few routes every route gets another expert."""
    if tokens * top_k <= COLD_ROUTES:
        return torch.arange(tokens * top_k, device=DEVICE).view(tokens, top_k)
    return torch.rand(tokens, experts, device=DEVICE, generator=g).topk(top_k, -1).indices


def skewed(tokens: int, experts: int, top_k: int, g: torch.Generator) -> torch.Tensor:
    """Expert 0 gets `HOTTEST` times the mean load; the others are drawn with weights that fall as 1 / (1 + e / 4)."""
    weight = 1 / (1 + torch.arange(experts, device=DEVICE) / 4)
    weight[0] = 0
    ids = torch.multinomial(weight.expand(tokens, experts), top_k, generator=g)
    hot = torch.rand(tokens, device=DEVICE, generator=g) < HOTTEST * top_k / experts
    ids[:, 0] = torch.where(hot, 0, ids[:, 0])
    return ids


def speculative(tokens: int, experts: int, top_k: int, g: torch.Generator) -> torch.Tensor:
    """Groups of two to six tokens, the last one cut off at the end.

    Slot by slot a token takes the expert of its group's first token with probability 0.7.
    """
    sizes = torch.randint(2, 7, (tokens,), device=DEVICE, generator=g)
    group = torch.repeat_interleave(torch.arange(tokens, device=DEVICE), sizes)[:tokens]
    leader = torch.searchsorted(group, group)
    ids = torch.rand(tokens, experts, device=DEVICE, generator=g).topk(top_k, -1).indices
    keep = torch.rand(tokens, top_k, device=DEVICE, generator=g) < 0.7
    taken = ids[leader]
    repeated = (ids[:, :, None] == taken[:, None, :]).any(-1)  # an own draw may not be an expert of the first token's
    return torch.where(keep | repeated, taken, ids)


def apart(ids: torch.Tensor, experts: int, offset: int) -> torch.Tensor:
    """The same routing with its experts renamed to the next ones of a fixed order, from `offset` on."""
    order = torch.randperm(experts, device=DEVICE, generator=torch.Generator(device=DEVICE).manual_seed(7))
    _, names = ids.unique(return_inverse=True)
    return order[(names + offset) % experts]


def copy_bandwidth(gib: int = 4, repeats: int = 10) -> float:
    """Bytes read plus written per second by a large device-to-device copy, median."""
    a = torch.randint(0, 255, (gib << 30,), dtype=torch.uint8, device=DEVICE)
    b = torch.empty_like(a)
    return 2 * a.numel() / statistics.median(time_events(lambda: b.copy_(a), repeats)) * 1e6


def matmul_rate(n: int = 8192, repeats: int = 10) -> float:
    """FLOP per second of a large bf16 matrix product on random data, median."""
    a, b = (torch.randn(n, n, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * n**3 / statistics.median(time_events(lambda: a @ b, repeats)) * 1e6


def time_events(run: Callable[[], object], repeats: int, warm: int = 3) -> list[float]:
    """Microseconds of each of `repeats` runs."""
    times = []
    for i in range(repeats + warm):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        if i >= warm:
            times.append(start.elapsed_time(end) * 1e3)
    return times


def capture(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """One graph of all calls, in order."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def calls_for(tokens: int, top_k: int) -> int:
    """How many calls a graph needs so that no weight byte is still in L2 when it comes round again."""
    return max(4, min(16, 256 // (tokens * top_k)))


def bytes_moved(ids: torch.Tensor, experts: int, hidden: int, inter: int, weights: str = "mxfp4") -> int:
    """Weights and scales of the experts hit, input and output."""
    hit = int(ids[(ids >= 0) & (ids < experts)].unique().numel())
    return hit * int(3 * hidden * inter * FORMATS[weights] / 8) + 4 * ids.shape[0] * hidden
