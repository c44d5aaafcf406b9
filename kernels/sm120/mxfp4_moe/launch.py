"""One chunk of tokens through the kernels: quantisation, sorting, two products, reduction."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
import triton

from . import gemm, reduce, routing, schedule, tuning
from .prepare import PreparedWeights

# Above this limit the intermediate could leave the range of the fast kernels: |h| <= limit**2, and 2**H_SHIFT times
# that must stay below 2**127.
NARROW_LIMIT = 2.0**13


@dataclasses.dataclass(frozen=True)
class Layer:
    """A call's constants. `native_fp8` None: ask the device; tests force the native path where it is only emulated."""

    w: PreparedWeights
    limit: float
    factor: float
    mxfp8: bool
    batch_invariant: bool
    native_fp8: bool | None = None

    def run(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, y: torch.Tensor) -> None:
        """y = the layer's output for x [T, H], ids and weights [T, K]: all checked, contiguous rows, T > 0, K > 0."""
        w, device = self.w, x.device
        tokens, top_k = ids.shape
        routes, experts, hidden, inter = tokens * top_k, w.num_experts, w.hidden_size, w.intermediate_size
        fp8 = self.mxfp8 and (has_native_fp8(device) if self.native_fp8 is None else self.native_fp8)
        wide = w.wide_scales or self.limit > NARROW_LIMIT
        p = tuning.plan(
            device,
            schedule.Work(tokens, top_k, experts, hidden, inter, self.mxfp8, fp8, self.batch_invariant, wide),
        )
        compiled, pdl = device.type == "cuda", has_pdl(device)
        common = {"PDL": pdl, "launch_pdl": pdl}
        x, xs = self._quantized(x, fp8, common)
        sorted_ids, counts = (ids, ids) if p.scan else _sort(ids.view(-1), experts, common)
        shared = common | {
            "HIDDEN": hidden,
            "INTER": inter,
            "RP": 64 if p.scan else 1,
            "EP": 1 if p.scan else _power_of_two(experts),
            "SCAN": p.scan,
            "MANY": p.many,
            "KEEP": p.many and schedule.is_sm90(device),
            "WIDE": wide,
            "ASM": compiled,
            "FP8": fp8,
        }
        h, hs = _intermediate(routes, inter, fp8, device)
        o = torch.empty((routes, hidden), dtype=p.partial, device=device)
        gemm.gate_up.launch(
            (p.groups * -(-2 * inter // p.gate_up.rows),), device, x, xs, w.w13, _pairs(w.w13_scale), h, hs, sorted_ids,
            counts, x.stride(0), self.limit, routes, experts, TOP_K=top_k, QUANT=self.mxfp8, **_tile(p.gate_up),
            **shared,
        )  # fmt: skip
        gemm.down.launch(
            (p.groups * -(-hidden // p.down.rows),), device, h, _pairs(hs), w.w2, _pairs(w.w2_scale), o, sorted_ids,
            counts, routes, experts, **_tile(p.down), **shared,
        )  # fmt: skip
        width = min(1024, _power_of_two(hidden))
        reduce.combine.launch(
            (tokens, -(-hidden // width)), device, o, ids, weights, y, self.factor, experts, y.stride(0), TOP_K=top_k,
            HIDDEN=hidden, BH=width, ASM=compiled, **common,
        )  # fmt: skip

    def _quantized(self, x: torch.Tensor, fp8: bool, common: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """x and its scale pairs as the first product reads them; without native MXFP8 x is rounded but stays bf16."""
        if not self.mxfp8:
            return x, x
        tokens, hidden = x.shape
        grid = (tokens, -(-hidden // 1024))
        if not fp8:
            rounded = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=x.device)
            compiled = x.device.type == "cuda"
            reduce.round_rows_to_mxfp8.launch(
                grid, x.device, x, rounded, x.stride(0), K=hidden, BLOCKS=32, ASM=compiled, **common
            )
            return rounded, rounded
        q = torch.empty((tokens, hidden), dtype=torch.uint8, device=x.device)
        qs = torch.empty((tokens, -(-hidden // 64) * 2), dtype=torch.uint8, device=x.device)
        reduce.quantize_rows.launch(grid, x.device, x, q, qs, x.stride(0), K=hidden, BLOCKS=32, **common)
        return q, _pairs(qs)


def _tile(t: schedule.Tile) -> dict[str, int]:
    return {"BN": t.rows, "BT": t.tokens, "SB": t.superblocks, "STAGES": t.stages, "num_warps": t.warps}


def _sort(ids: torch.Tensor, experts: int, common: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    routes = ids.numel()
    sorted_ids = torch.empty(routes, dtype=torch.int32, device=ids.device)
    counts = torch.empty(2 * experts, dtype=torch.int32, device=ids.device)
    routing.sort_routes.launch((experts,), ids.device, ids, sorted_ids, counts, routes, experts, CHUNK=1024, **common)
    return sorted_ids, counts


def _intermediate(routes: int, inter: int, fp8: bool, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The first product's output and, for native MXFP8, its scale pairs."""
    h = torch.empty((routes, inter), dtype=torch.uint8 if fp8 else torch.bfloat16, device=device)
    return h, torch.empty((routes, -(-inter // 64) * 2), dtype=torch.uint8, device=device) if fp8 else h


def _pairs(scale: torch.Tensor) -> torch.Tensor:
    return scale.view(-1).view(torch.int16)


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


@functools.cache
def has_pdl(device: torch.device) -> bool:
    """Programmatic dependent launch exists from compute capability 9.0 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


@functools.cache
def has_native_fp8(device: torch.device) -> bool:
    """Whether Triton lowers an e4m3 `dot_scaled` to a block-scaled MMA here: SM120, and SM121 from Triton 3.8 on."""
    if device.type != "cuda":
        return False
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    capability = torch.cuda.get_device_capability(device)
    return capability == (12, 0) or (capability == (12, 1) and version >= (3, 8))
