"""One chunk of tokens through the kernels: quantisation, sorting, two products, reduction.

All that does not depend on addresses and values is decided once for a `Form` and kept as a `Program`; a call then
allocates, and launches each kernel with its addresses.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import Any

import torch
import triton

from .. import runtime
from ..device import gemm, groups, reduce
from ..runtime import Kernel, Pointer
from ..weights.formats import Format
from ..weights.prepared import PreparedWeights
from . import schedule, tuning

# Above this limit the intermediate could leave the range of the fast kernels: |h| <= limit**2, and 2**H_SHIFT times
# that must stay below 2**127.
NARROW_LIMIT = 2.0**13
ALIGNMENT = 256  # bytes, of each part of the workspace
GIVEN = ("x", "ids", "weights", "w13", "w13_scale", "w2", "w2_scale", "y")
GLOBALS = ("w13_global", "w2_global")  # given besides where the format has them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """What a program depends on. Strides are in elements; `fp8`: with `mxfp8`, multiply in e4m3 instead of bf16;
    `format`: of the weights."""

    device: torch.device
    tokens: int
    top_k: int
    experts: int
    hidden: int
    inter: int
    ids: torch.dtype
    x_stride: int
    y_stride: int
    y_aligned: bool
    limit: float
    factor: float
    mxfp8: bool
    fp8: bool
    batch_invariant: bool
    wide_scales: bool
    format: Format

    @property
    def wide(self) -> bool:
        """Whether the kernels with more range must run."""
        return self.format.has_ends and (self.wide_scales or self.limit > NARROW_LIMIT)


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A part of the workspace."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, int]

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Step:
    """One kernel of a program. `args` are `Pointer`s, by name to what is given or to a buffer, then numbers."""

    kernel: Kernel
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]


class Program:
    """The launches of a form. `run` may be called from any thread and stream, also while a CUDA graph is captured."""

    def __init__(self, form: Form) -> None:
        self.device = form.device
        self.given = GIVEN + GLOBALS if form.format.has_global else GIVEN
        self.steps, self.buffers = steps(form)
        self.offsets, end = [], 0
        for buffer in self.buffers:
            self.offsets.append(end)
            end += -(-buffer.bytes // ALIGNMENT) * ALIGNMENT
        self.bytes = end + ALIGNMENT  # torch's allocators align more than Python's, but promise nothing
        if runtime.is_compiled(form.device):
            self._index = form.device.index or 0
            place = {name: i for i, name in enumerate((*self.given, *(b.name for b in self.buffers)))}
            self._launches = []
            for s in self.steps:
                pick = operator.itemgetter(*(place[a.name] for a in s.args if isinstance(a, Pointer)))
                self._launches.append((s.kernel.launcher(self._index, s.grid, s.args, s.options), pick))

    def run(
        self, x: torch.Tensor, w: PreparedWeights, ids: torch.Tensor, weights: torch.Tensor, y: torch.Tensor
    ) -> None:
        """y = the layer's output. The tensors are as the form says; the device is the current one."""
        space = torch.empty(self.bytes, dtype=torch.uint8, device=self.device)
        given: tuple[Any, ...] = (x, ids, weights, w.w13, w.w13_scale, w.w2, w.w2_scale, y)
        if self.given is not GIVEN:
            given += (w.w13_global, w.w2_global)
        start = space.data_ptr()
        skip = -start % ALIGNMENT
        if not runtime.is_compiled(self.device):
            self._interpret(space[skip:], given)
            return
        start += skip
        addresses = [t.data_ptr() for t in given]
        addresses += [start + offset for offset in self.offsets]
        stream = runtime.current_stream(self._index)
        enter, leave = runtime.hooks()
        for launch, pick in self._launches:
            launch(stream, enter, leave, pick(addresses))

    def _interpret(self, space: torch.Tensor, given: tuple[torch.Tensor, ...]) -> None:
        tensors = dict(zip(self.given, given, strict=True))
        for buffer, offset in zip(self.buffers, self.offsets, strict=True):
            tensors[buffer.name] = space[offset : offset + buffer.bytes].view(buffer.dtype).view(buffer.shape)
        for s in self.steps:
            args = [_typed(tensors[a.name], a.dtype) if isinstance(a, Pointer) else a for a in s.args]
            s.kernel.interpret(s.grid, args, s.options)


def plan(f: Form) -> schedule.Plan:
    """The tiles of a form."""
    work = schedule.Work(
        f.tokens, f.top_k, f.experts, f.hidden, f.inter, mxfp8=f.mxfp8, fp8=f.fp8, invariant=f.batch_invariant,
        wide_range=f.wide, format=f.format,
    )  # fmt: skip
    return tuning.plan(f.device, work)


def steps(f: Form) -> tuple[list[Step], list[Buffer]]:
    """The kernels of a form in order, and the workspace that they share."""
    routes, pdl, p = f.tokens * f.top_k, has_pdl(f.device), plan(f)
    common = {"PDL": pdl, "launch_pdl": pdl}
    wgmma = p.many and schedule.is_sm90(f.device)
    made, buffers, x, xs = _input(f, wgmma, common)
    ids = sorted_ids = table = Pointer("ids", f.ids)
    if not p.scan:
        sorted_ids, table = Pointer("sorted", torch.int32), Pointer("table", torch.int32)
        buffers += [Buffer("sorted", torch.int32, (1, routes)), Buffer("table", torch.int32, (1 + p.groups, 4))]
        sort = {"CHUNK": 1024, "EP": _power_of_two(f.experts + 1), "BT": p.gate_up.tokens} | common
        made.append(Step(groups.sort_routes, (f.experts,), (ids, sorted_ids, table, routes, f.experts), sort))
    shared = common | {
        "HIDDEN": f.hidden,
        "INTER": f.inter,
        "SCAN": p.scan,
        "MANY": p.many,
        "WGMMA": wgmma,
        "TURN": wgmma and f.batch_invariant,
        "WIDE": f.wide,
        "NV": f.format.has_global,
        "ASM": runtime.is_compiled(f.device),
        "FP8": f.fp8,
    }
    middle = _intermediate(routes, f.inter, f.fp8)
    h, hs = Pointer("h", middle[0].dtype), middle[-1].name
    o = Pointer("o", p.partial)
    buffers += [*middle, Buffer("o", p.partial, (routes, f.hidden))]
    codes, scales = torch.uint8, f.format.scales
    up_global, down_global = (Pointer(n, torch.float32) if f.format.has_global else None for n in GLOBALS)
    up = (
        x, xs, Pointer("w13", codes), Pointer("w13_scale", scales), h, Pointer(hs, h.dtype), sorted_ids, table,
        up_global, f.hidden if f.mxfp8 or wgmma else f.x_stride, f.limit, routes, f.experts,
    )  # fmt: skip
    down = (
        h, Pointer(hs, torch.int16), Pointer("w2", codes), Pointer("w2_scale", scales), o, sorted_ids, table,
        down_global, routes, f.experts,
    )  # fmt: skip
    grids = [(p.groups * -(-n // t.rows),) for n, t in ((2 * f.inter, p.gate_up), (f.hidden, p.down))]
    made += [
        Step(gemm.gate_up, grids[0], up, {"TOP_K": f.top_k, "QUANT": f.mxfp8} | _tile(p.gate_up) | shared),
        Step(gemm.down, grids[1], down, _tile(p.down) | shared),
        _combine(f, o, p.scan, common | {"ASM": runtime.is_compiled(f.device)}),
    ]
    return made, buffers


def _input(f: Form, wgmma: bool, common: dict[str, Any]) -> tuple[list[Step], list[Buffer], Pointer, Pointer]:
    """What makes x as the first product reads it, and x and its scale pairs then.

    Without native MXFP8 x is rounded but stays bf16, and has no scales; wgmma wants its columns in another order.
    """
    x = Pointer("x", torch.bfloat16)
    if not (f.mxfp8 or wgmma):
        return [], [], x, x
    grid, options = (f.tokens, -(-f.hidden // 1024)), {"K": f.hidden, "BLOCKS": 32} | common
    if not f.fp8:
        q = Pointer("q", torch.bfloat16)
        kernel = reduce.reorder_rows
        if f.mxfp8:
            kernel = reduce.round_rows_to_mxfp8
            options |= {"WGMMA": wgmma, "ASM": runtime.is_compiled(f.device)}
        step = Step(kernel, grid, (x, q, f.x_stride), options)
        return [step], [Buffer("q", q.dtype, (f.tokens, f.hidden))], q, q
    q, qs = Pointer("q", torch.uint8), Pointer("qs", torch.uint8)
    buffers = [
        Buffer("q", q.dtype, (f.tokens, f.hidden)),
        Buffer("qs", qs.dtype, (f.tokens, -(-f.hidden // 64) * 2)),
    ]
    return [Step(reduce.quantize_rows, grid, (x, q, qs, f.x_stride), options)], buffers, q, Pointer("qs", torch.int16)


def _intermediate(routes: int, inter: int, fp8: bool) -> list[Buffer]:
    """The first product's output and, for native MXFP8, its scale pairs."""
    if not fp8:
        return [Buffer("h", torch.bfloat16, (routes, inter))]
    return [Buffer("h", torch.uint8, (routes, inter)), Buffer("hs", torch.uint8, (routes, -(-inter // 64) * 2))]


def _combine(f: Form, o: Pointer, few: bool, options: dict[str, Any]) -> Step:
    # With few tokens more and smaller programs save half a microsecond (benchmarks/NOTES.md, item 12).
    width = min(512 if few else 1024, _power_of_two(f.hidden))
    args = (
        o, Pointer("ids", f.ids), Pointer("weights", torch.float32), Pointer("y", torch.bfloat16, f.y_aligned),
        f.factor, f.experts, f.y_stride,
    )  # fmt: skip
    options = {"TOP_K": f.top_k, "HIDDEN": f.hidden, "BH": width} | options
    return Step(reduce.combine, (f.tokens, -(-f.hidden // width)), args, options)


def _tile(t: schedule.Tile) -> dict[str, int]:
    shape = {"BN": t.rows, "BT": t.tokens, "SB": t.superblocks, "UNROLL": t.unroll}
    return shape | {"STAGES": t.stages, "num_warps": t.warps}


def _typed(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return t if t.dtype == dtype else t.view(-1).view(dtype)


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
