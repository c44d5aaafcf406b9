"""The timer that a search for tiles compares them with."""

from __future__ import annotations

import pytest
import torch
import triton

from sglang_sm120.commands import gpu_timing
from sglang_sm120.commands.tune import search
from sglang_sm120.commands.tune.search import Comparison, GpuTimer
from sglang_sm120.kernels.sm120 import fp4_moe
from sglang_sm120.kernels.sm120.fp4_moe.host import tuning
from sglang_sm120.kernels.sm120.tile_tables import Shape, Tile


class Graphs:
    """torch.cuda as far as a timer needs it, on a CPU: graphs run their call, and time is what the test says."""

    def __init__(self, monkeypatch, real=False):
        self.log, self.now, self.cost = [], 0.0, lambda: 1.0
        outer = self

        class Graph:
            def __init__(self):
                outer.log.append("captured")

            def replay(self):
                outer.log.append(id(self))
                outer.now += outer.cost()

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = outer.now

            def elapsed_time(self, other):
                return other.at - self.at

        class Nothing:
            def __init__(self, *args):
                pass

            def __enter__(self):
                return self

            def __exit__(self, *args):
                return None

            def wait_stream(self, other):
                pass

            def synchronize(self):
                pass

        for name, value in {"CUDAGraph": Graph, "Event": Event, "graph": Nothing, "Stream": Nothing}.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.cuda, "stream", Nothing)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(gpu_timing, "FLUSH_BYTES", 64)
        if not real:
            monkeypatch.setattr(fp4_moe, "fp4_moe", lambda x, *_args, out: out.copy_(x))
        flush = gpu_timing.Flush.__call__
        monkeypatch.setattr(gpu_timing.Flush, "__call__", lambda it: (self.log.append("flush"), flush(it))[1])


SMALL = Shape(4, 64, 32, 2)


def test_the_timer_flushes_before_each_call_and_lets_both_take_turns(monkeypatch):
    gpu = Graphs(monkeypatch)
    timer = GpuTimer(torch.device("cpu"))
    assert timer(SMALL, 2, (Tile(32, 8, 2, 1), Tile(32, 8, 2, 1)), 3) == Comparison(1000.0, 1000.0, 1.0)
    ran = [entry for entry in gpu.log if entry != "captured"]
    assert ran[::2] == ["flush"] * (len(ran) // 2)
    replays = ran[1::2]
    assert len(replays) == 2 * (3 + 1) * search.DRAWS
    assert len(set(replays)) == 2 * search.DRAWS  # each draw of each contestant has a graph of its own
    pairs = list(zip(replays[::2], replays[1::2], strict=True))
    assert len(set(pairs)) == 2 * search.DRAWS  # and who begins changes, draw by draw
    assert all((b, a) in pairs for a, b in pairs)


def test_each_draw_has_its_own_experts_and_speculative_tokens_share_theirs():
    shape = Shape(64, 64, 32, 6)
    uniform, speculative = (GpuTimer.__new__(GpuTimer) for _ in range(2))
    for timer, routing in ((uniform, "uniform"), (speculative, "speculative")):
        timer.device, timer.routing = torch.device("cpu"), routing
    ids = [uniform._case(shape, 8, seed)[1] for seed in range(search.DRAWS)]
    assert len({tuple(i.flatten().tolist()) for i in ids}) == search.DRAWS
    hit = [sum(t._case(shape, 8, s)[1].unique().numel() for s in range(8)) for t in (uniform, speculative)]
    assert hit[1] < 0.8 * hit[0]


def test_a_drifting_clock_is_no_gain(monkeypatch):
    """The GPU slows down by half during a comparison; the neighbours' ratio does not see it."""
    gpu = Graphs(monkeypatch)
    gpu.cost = lambda: 1.0 + len(gpu.log) / 200
    found = GpuTimer(torch.device("cpu"))(SMALL, 2, (Tile(32, 8, 2, 1), Tile(32, 8, 2, 1)), 10)
    assert abs(found.ratio - 1) < 0.02


def test_tiles_that_do_not_fit_or_change_a_bit_are_left_out(monkeypatch):
    Graphs(monkeypatch, real=True)
    monkeypatch.setattr(search, "DRAWS", 1)
    timer = GpuTimer(torch.device("cpu"))
    assert timer(SMALL, 2, None, 1)
    real = fp4_moe.fp4_moe

    def spoilt(*args, out, **more):
        real(*args, out=out, **more)
        out[0, 0] += 1
        return out

    monkeypatch.setattr(fp4_moe, "fp4_moe", spoilt)
    assert timer(SMALL, 2, (Tile(32, 8, 2, 1), Tile(32, 8, 2, 1)), 1) is None

    def too_large(*args, **more):
        raise triton.runtime.errors.OutOfResources(200_000, 101_376, "shared memory")

    monkeypatch.setattr(fp4_moe, "fp4_moe", too_large)
    assert timer(SMALL, 2, (Tile(32, 8, 2, 1), Tile(32, 8, 2, 1)), 1) is None


def test_nvfp4_tiles_are_tried_on_weights_that_are_nvfp4(monkeypatch):
    """A lossless cast of MXFP4 would run MXFP4's kernel, and its times would go into the other table."""
    Graphs(monkeypatch, real=True)
    monkeypatch.setattr(search, "DRAWS", 1)
    timer = GpuTimer(torch.device("cpu"))
    assert timer(Shape(4, 64, 64, 2, format="nvfp4"), 2, (Tile(32, 8, 2, 1), Tile(32, 8, 2, 1)), 1)
    assert timer.weights.format.name == "nvfp4"


@pytest.mark.gpu
@pytest.mark.parametrize("experts", ["mxfp4", "nvfp4"])
def test_every_candidate_gives_the_same_bits(device, experts):
    timer = GpuTimer(torch.device(device, 0))
    shape = Shape(16, 1024, 288, 4, format=experts)
    for tokens in (1, 40):
        assert timer(shape, tokens, None, 1)
        for tile in tuning.CANDIDATES:
            assert timer(shape, tokens, (tile, tile), 1) is not None
