"""Nothing is compiled for a call that `warm_up` has foreseen, and it foresees every number of tokens."""

from __future__ import annotations

import contextlib
import logging

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from sglang_sm120.kernels.sm120 import fp4_moe as moe
from sglang_sm120.kernels.sm120.fp4_moe import layer as layer_call
from sglang_sm120.kernels.sm120.fp4_moe import runtime, warming
from sglang_sm120.kernels.sm120.fp4_moe.host import program, schedule

EXPERTS, HIDDEN, TOP_K, SMS = 256, 4096, 6, 188  # V4-Flash
MODES = ("bf16", "mxfp8")


class Loaded:
    """A compiled kernel that does nothing but check that its addresses are as aligned as it was told."""

    function, packed_metadata = 1, ()

    def __init__(self, names, args) -> None:
        pointers = [
            (n, a.aligned and n not in runtime.NARROW) for n, a in zip(names, args, strict=False) if is_pointer(a)
        ]
        self.pointers = pointers

    def _init_handles(self) -> None: ...

    def run(self, *given) -> None:
        for (name, aligned), address in zip(self.pointers, given[9:], strict=False):
            assert address % 16 == 0 or not aligned, name


def is_pointer(arg):
    return isinstance(arg, runtime.Pointer)


@pytest.fixture
def compiled(monkeypatch):
    """SM120 as it looks from Python, for CPU tensors: (kernel, its arguments) of each compilation."""
    made = []

    def warmup(self, *args, grid, **options):
        made.append((self.fn.__name__, args))
        return Loaded(self.arg_names, args)

    def forget():
        layer_call._call.cache_clear()
        warming._warm_up.cache_clear()
        for kernel in kernels:
            kernel._ready.clear()
        runtime._warm.clear()

    kernels = [v for m in (program.gemm, program.reduce, program.groups) for v in vars(m).values()]
    kernels = [k for k in kernels if isinstance(k, runtime.Kernel)]
    for owner, name in ((runtime, "is_compiled"), (program, "has_pdl"), (program, "has_native_fp8")):
        monkeypatch.setattr(owner, name, lambda device: True)
    monkeypatch.setattr(schedule, "sm_count", lambda device: SMS)
    monkeypatch.setattr(runtime, "current_stream", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(JITFunction, "warmup", warmup)
    forget()
    yield made
    forget()


def layer(inter, hidden=HIDDEN, weights=moe.MXFP4):
    """The kernels are not run, so only the sizes count."""
    factors = torch.empty(EXPERTS, 2) if weights.has_global else None
    return moe.PreparedWeights(
        *[torch.empty(1, dtype=torch.uint8)] * 4, EXPERTS, hidden, inter, False, weights, factors, factors
    )


def call(w, x, activation="bf16", **more):
    ids = torch.zeros(len(x), TOP_K, dtype=torch.int32)
    moe.fp4_moe(x, w, ids, torch.zeros(len(x), TOP_K), activation=activation, **more)


@pytest.mark.parametrize("activation", [*MODES, "nvfp4"])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_every_number_of_tokens_is_foreseen(compiled, caplog, tp, activation):
    """1 to 8192 tokens compile nothing more, and nothing was compiled for no call."""
    w, x = layer(2048 // tp), torch.empty(8192, HIDDEN, dtype=torch.bfloat16)
    if activation == "nvfp4":
        w, activation = layer(2048 // tp, weights=moe.NVFP4), "bf16"
    done = moe.warm_up(w, TOP_K, activation=activation)
    before = len(compiled)
    assert done.kernels == before <= 20
    used = set()
    ready = runtime.Kernel.ready

    def remember(self, index, args, options, early=False):
        used.add((self, *self.key(index, args, options)))
        return ready(self, index, args, options, early)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.Kernel, "ready", remember)
        patch.setattr(program.Program, "run", lambda self, *given: None)
        for tokens in (*range(1, 400), *range(400, 8193, 61), 8192):
            call(w, x[:tokens], activation)
    assert len(compiled) == before
    assert len(used) == before
    assert not caplog.records


def test_a_format_needs_kernels_of_its_own_and_has_no_mxfp8(compiled):
    moe.warm_up(layer(1024), TOP_K)
    before = len(compiled)
    moe.warm_up(layer(1024, weights=moe.NVFP4), TOP_K)
    assert {name for name, _ in compiled[before:]} == {"gate_up", "down"}
    with pytest.raises(ValueError, match="activation is 'mxfp8', expected 'bf16' with NVFP4 weights"):
        moe.warm_up(layer(1024, weights=moe.NVFP4), TOP_K, activation="mxfp8")


def test_layouts_of_the_input_are_foreseen(compiled):
    w, wide = layer(1024), torch.empty(70 * (HIDDEN + 40) + 1, dtype=torch.bfloat16)
    moe.warm_up(w, TOP_K)
    before = len(compiled)
    for step in (0, 1, 8, 16, 24):
        for start in (0, 1, 8):
            for tokens in (1, 2, 7, 64):
                x = wide.as_strided((tokens, HIDDEN), (HIDDEN + step, 1), start)
                call(w, x)
                call(w, x, out=torch.empty(tokens, HIDDEN, dtype=torch.bfloat16))
    ids = torch.zeros(64 * TOP_K + 1, dtype=torch.int32)[1:].view(64, TOP_K)
    weights = torch.zeros(64 * TOP_K + 1)[1:].view(64, TOP_K)
    moe.fp4_moe(wide.as_strided((64, HIDDEN), (HIDDEN, 1)), w, ids, weights)
    assert len(compiled) == before


def test_a_compilation_after_the_warm_up_is_reported_once(compiled, caplog):
    w, x = layer(1024), torch.empty(4, HIDDEN, dtype=torch.bfloat16)
    call(w, x)
    assert compiled
    moe.warm_up(w, TOP_K)
    assert not caplog.records
    before = len(compiled)
    out = torch.empty(4 * HIDDEN + 1, dtype=torch.bfloat16)[1:].view(4, HIDDEN)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            call(w, x, out=out)
    assert [name for name, _ in compiled[before:]] == ["combine"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "combine after the warm-up" in record.getMessage()


def test_a_layer_like_an_earlier_one_costs_nothing(compiled):
    first = moe.warm_up(layer(1024), TOP_K)
    before = len(compiled)
    assert moe.warm_up(layer(1024), TOP_K) is first
    assert len(compiled) == before
    moe.warm_up(layer(512), TOP_K)
    assert len(compiled) > before


def test_fewer_tokens_need_fewer_kernels(compiled):
    assert moe.warm_up(layer(1024), TOP_K, 4).kernels < moe.warm_up(layer(1024), TOP_K).kernels


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": 33}, "top_k is 33"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"activation": "fp8"}, "activation is 'fp8'"),
        ({"swiglu_limit": -1}, "swiglu_limit is -1"),
    ],
)
def test_bad_arguments(compiled, change, says):
    with pytest.raises(ValueError, match=says):
        moe.warm_up(**{"w": layer(1024), "top_k": TOP_K} | change)


def test_on_a_cpu_there_is_nothing_to_compile():
    with pytest.raises(ValueError, match="w is on cpu, expected a GPU"):
        moe.warm_up(layer(1024), TOP_K)


@pytest.mark.parametrize("activation", MODES)
def test_triton_tells_real_calls_apart_as_the_keys_do(monkeypatch, activation):
    """What Triton itself would compile for the tensors and numbers of real calls is what it would for `warm_up`'s."""

    class Driver:
        def get_current_device(self):
            return 0

        def get_current_stream(self, index):
            return 0

        def get_current_target(self):
            return GPUTarget("cuda", 120, 32)

    keys = set()

    def would_compile(*, key, fn, **_):
        keys.add((fn.name, key))
        return True  # and so does not compile

    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", would_compile)
    monkeypatch.setattr(schedule, "sm_count", lambda device: SMS)
    monkeypatch.setattr(program, "has_native_fp8", lambda device: True)

    def typed(self, grid, args, options):
        self.compiled.warmup(*args, grid=grid, **options)

    monkeypatch.setattr(runtime.Kernel, "interpret", typed)
    layer_call._call.cache_clear()
    x, bytes_ = torch.empty(4096, HIDDEN, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.uint8)
    w = moe.PreparedWeights(bytes_, bytes_, bytes_, bytes_, EXPERTS, HIDDEN, 1024, False)
    for tokens in (*range(1, 40), *range(40, 4097, 161), 4096):
        call(w, x[:tokens], activation)
    layer_call._call.cache_clear()
    real, mxfp8 = set(keys), activation == "mxfp8"
    keys.clear()
    form = program.Form(
        device=x.device, tokens=1, top_k=TOP_K, experts=EXPERTS, hidden=HIDDEN, inter=1024, ids=torch.int32,
        x_stride=HIDDEN, y_stride=HIDDEN, y_aligned=True, limit=10.0, factor=1.0, mxfp8=mxfp8, fp8=mxfp8,
        batch_invariant=False, wide_scales=False, format=moe.MXFP4,
    )  # fmt: skip
    steps = warming.needed_steps(form, 4096)
    for step in steps.values():
        step.kernel.compiled.warmup(*step.args, grid=(1,), **step.options)
    assert real == keys
    assert len(keys) == len(steps)
