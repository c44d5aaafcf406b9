"""A tile's PTX for SM120 can be substituted and assembled for SM90, and the context that does it leaves no trace."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import CompiledKernel

from sglang_sm120.commands.selftest.sm120_code import cases, compiling, proof
from sglang_sm120.kernels.sm120.fp4_moe import runtime
from sglang_sm120.kernels.sm120.fp4_moe.host import program, schedule, tuning

DEVICE = torch.device("cuda:0")


class Driver:
    """What Triton asks before it compiles, on a machine without a GPU: an SM90."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, index: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def no_gpu(monkeypatch):
    """An SM90 as far as compiling goes; nothing is loaded."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(CompiledKernel, "_init_handles", lambda self: None)
    active = triton.runtime.driver._active
    triton.runtime.driver.set_active(Driver())
    yield
    triton.runtime.driver.set_active(active)


@pytest.fixture
def code(no_gpu, tmp_path):
    with compiling.Sm120Code("sm_120a", 188, tmp_path / "cache") as found:
        yield found


def machine(cubin: bytes) -> int:
    """The SM version in the flags of a cubin's ELF header (bits 8 to 15, before them the low byte)."""
    flags = int.from_bytes(cubin[48:52], "little")
    return flags >> 8 & 255 if flags >> 8 & 255 in (90, 120, 121) else flags & 255


def test_every_tile_of_a_layer_assembles_for_sm90(code):
    """V4-Flash's narrowest shard, both modes; what was replaced is counted for each kernel."""
    work = proof.Work()
    layer = cases.LAYERS[:1]
    found = {c: t for c, t in cases.enumerate_cases(layer, 188, DEVICE).items() if not (c.invariant or c.unclamped)}
    work.add(found, 188, DEVICE, lean=True)
    assert proof.compile_all(work.steps.values(), 2) == []
    assert code.made.keys() == work.steps.keys()
    native = [key for key, s in work.steps.items() if s.options.get("FP8")]
    assert native
    assert all(code.made[key].replaced.get("block-scaled MMA", 0) >= 16 for key in native)
    cubins = [k.asm["cubin"] for kernel in compiling.kernels() for k in kernel._ready.values()]
    assert len(cubins) == len(work.steps)
    assert {machine(c) for c in cubins} == {90}
    ran = [{"case": str(c), "mode": c.mode, "tiles": sorted(t), "closely": True, "error": 1e-3, "wrong": []}
           for c, (_, t) in work.cases.items()]  # fmt: skip
    rows = proof.tile_rows(work, code.made, ran)
    assert {r["tile"] for r in rows} == work.in_use[188]
    assert all(r["ok"] and r["sms"] == [188] and r["kernels"] for r in rows)
    missing = proof.tile_rows(work, code.made, ran[1:])
    assert not all(r["ok"] for r in missing)


def test_an_instruction_that_is_not_known_is_an_error_of_its_tile(code, monkeypatch):
    own = CUDABackend.make_ptx

    def with_another(self, *args):
        return own(self, *args).replace("\n\tret;", "\n\tcvt.rn.bf16x2.ue8m0x2 %r1, %rs1;\n\tret;")

    monkeypatch.setattr(CUDABackend, "make_ptx", with_another)
    step = cases.steps(cases.Case(cases.LAYERS[0], 1, "bf16"), DEVICE)[-1]
    (error,) = proof.compile_all([step], 1)
    assert error.startswith("combine ")
    assert "cvt.rn.bf16x2.ue8m0x2" in error


def test_plans_are_those_of_sm120_and_follow_the_number_of_sms(code):
    case = cases.Case(cases.LAYERS[3], 5, "mxfp8")
    for sms in compiling.SMS:
        code.resize(sms)
        form = cases.form(case, DEVICE)
        assert form.fp8
        work = schedule.Work(5, 6, 256, 4096, 512, True, True, False, False)
        assert program.plan(form) == schedule.plan(work, sms, False)
    few, many = (cases.enumerate_cases(cases.LAYERS[6:7], n, DEVICE) for n in (188, 48) if not code.resize(n))
    assert few != many


@pytest.mark.parametrize(("arch", "version", "native"), [("sm_120a", "3.6.0", True), ("sm_121a", "3.6.0", False), ("sm_121a", "3.8.0", True)])  # fmt: skip  # noqa: E501
def test_the_kernels_own_rules_decide_what_is_native(no_gpu, tmp_path, monkeypatch, arch, version, native):
    monkeypatch.setattr(triton, "__version__", version)
    with compiling.Sm120Code(arch, 48, tmp_path):
        assert program.has_native_fp8(DEVICE) is native
        assert program.has_pdl(DEVICE)
        assert not schedule.is_sm90(DEVICE)
        assert schedule.sm_count(DEVICE) == 48


def test_only_the_packages_kernels_are_sm120s(code):
    target = triton.runtime.driver.active.get_current_target
    assert target().arch == 90
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            runtime.triton.runtime.jit.JITFunction, "warmup", lambda self, *a, **k: seen.append(target().arch)
        )
        patch.setattr(runtime, "logger", None)
        step = cases.steps(cases.Case(cases.LAYERS[0], 1, "bf16"), DEVICE)[0]
        with pytest.raises(AttributeError):  # nothing was compiled
            step.kernel.ready(0, step.args, step.options)
    assert seen == [120]
    assert target().arch == 90


def test_it_leaves_everything_as_it_was(no_gpu, tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    places = [(CUDABackend, "make_cubin"), (runtime.Kernel, "ready"), (schedule, "sm_count"), (schedule, "is_sm90"),
              (program, "has_pdl"), (program, "has_native_fp8"), (torch.cuda, "get_device_capability")]  # fmt: skip
    before = [getattr(*place) for place in places]
    directory = triton.knobs.cache.dir
    with compiling.Sm120Code("sm_121a", 84, tmp_path):
        assert triton.knobs.cache.dir == str(tmp_path)
        assert tuning._forced
        assert sum(getattr(*place) is not b for place, b in zip(places, before, strict=True)) == 6
    assert [getattr(*place) for place in places] == before
    assert "get_current_target" not in vars(triton.runtime.driver.active)
    assert triton.knobs.cache.dir == directory
    assert "TRITON_CACHE_DIR" not in os.environ
    assert not tuning._forced
    assert not any(kernel._ready for kernel in compiling.kernels())


@pytest.mark.parametrize("capability", [(12, 0), (10, 0), (8, 9), (9, 1)])
def test_other_gpus_are_refused_by_name(no_gpu, monkeypatch, tmp_path, capability):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA Something")
    with pytest.raises(compiling.WrongGpu, match=rf"NVIDIA Something, SM{capability[0]}{capability[1]}"):
        compiling.Sm120Code("sm_120a", 188, tmp_path).__enter__()
    assert CUDABackend.make_cubin.__module__ == CUDABackend.__module__


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="arch is 'sm_100a', expected one of sm_120a, sm_121a"):
        compiling.Sm120Code("sm_100a", 188, Path())
    with pytest.raises(ValueError, match="sms is 0"):
        compiling.Sm120Code("sm_120a", 0, Path())


@pytest.mark.parametrize(("what", "mode"), [("wait", "bf16"), ("lane", "mxfp8"), ("half", "bf16")])
def test_a_fault_is_put_into_the_code(no_gpu, tmp_path, what, mode):
    with compiling.Sm120Code("sm_120a", 188, tmp_path, what) as code:
        steps = cases.steps(cases.Case(cases.LAYERS[0], 1, mode), DEVICE)
        assert proof.compile_all([s for s in steps if s.kernel.__name__ == "gate_up"], 1) == []
    assert sum(m.broken for m in code.made.values()) > 0
