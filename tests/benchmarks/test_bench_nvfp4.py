"""The kernel race on NVFP4 weights: what it makes, counts and checks, and which contestants take part; no GPU."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
KERNELS = Path(__file__).resolve().parents[2] / "benchmarks/kernels"


@pytest.fixture(scope="module", autouse=True)
def kernels_path():
    added = [str(KERNELS), str(KERNELS.parent)]
    sys.path[:0] = added
    yield
    for path in added:
        sys.path.remove(path)


@pytest.fixture
def made(monkeypatch):
    """A small layer and a call of it."""
    workload = importlib.import_module("workload")
    monkeypatch.setattr(workload, "DEVICE", "cpu")
    return workload, workload.random_weights(8, 256, 128, "nvfp4"), workload.case(6, 8, 256, 2)


def reference(weights, case, limit=10.0):
    moe = importlib.import_module("sglang_sm120.kernels.sm120.fp4_moe")
    x, ids, probabilities = case
    return moe.reference.nvfp4_moe(x, *weights, ids, probabilities, swiglu_limit=limit)


def test_the_layer_is_nvfp4_and_reaches_its_clamp(made):
    workload, weights, _ = made
    moe = importlib.import_module("sglang_sm120.kernels.sm120.fp4_moe")
    assert moe.prepare_nvfp4(*(t.clone() for t in weights)).format == moe.NVFP4  # no cast of MXFP4
    assert torch.equal(weights[2][:, 0], weights[2][:, 1])
    large = workload.random_weights(2, 4096, 64, "nvfp4"), workload.case(6, 2, 4096, 1)
    assert not torch.allclose(reference(*large), reference(*large, limit=None))


def test_the_floor_counts_four_and_a_half_bits_a_weight(made):
    workload = made[0]
    ids = torch.tensor([[0, 1], [1, 5]])
    assert workload.bytes_moved(ids, 8, 256, 128, "nvfp4") == 3 * 3 * 256 * 128 * 4.5 / 8 + 4 * 2 * 256
    assert workload.bytes_moved(ids, 8, 256, 128) == 3 * 3 * 256 * 128 * 4.25 / 8 + 4 * 2 * 256


def test_a_contestant_is_held_to_the_formats_reference(made):
    _, weights, case = made
    check = importlib.import_module("bench_moe").Check(weights, case, 6)
    assert check.error("ours bf16", reference(weights, case)) < 1e-12
    other = [t.clone() for t in weights]
    other[2][:, 1] *= 1.5
    with pytest.raises(ValueError, match="not timed"):
        check.error("marlin", reference(other, case))


@pytest.mark.parametrize("name", ["ours mxfp8", "triton_kernels", "no such one"])
def test_contestants_of_the_other_format_are_refused_by_name(made, monkeypatch, name):
    bench = importlib.import_module("bench_moe")
    monkeypatch.setattr(sys, "argv", ["bench_moe.py", "--format", "nvfp4", "--contestants", f"ours bf16,{name}"])
    with pytest.raises(SystemExit, match=f"--contestants names '{name}', expected some of ours bf16, .*marlin"):
        bench.names_asked(bench.parsed())
    monkeypatch.setattr(sys, "argv", ["bench_moe.py", "--format", "nvfp4"])
    assert bench.names_asked(bench.parsed()) == ["ours bf16", "marlin", "humming", "naive"]


def test_marlin_gets_the_checkpoints_tensors_and_gates_global(made, monkeypatch):
    _, weights, case = made

    def prepare(layer):
        assert (layer.quant_config.group_size, layer.moe_runner_config.is_gated) == (16, True)
        assert (layer.intermediate_size_per_partition, layer.params_dtype) == (128, torch.bfloat16)
        assert layer.w13_weight_scale.dtype == torch.float8_e4m3fn
        layer.workspace = torch.zeros(1)

    def fused_marlin_moe(*, hidden_states, w1, w2, w1_scale, w2_scale, w1_global_scale, w2_global_scale, **others):
        assert others["gating_output"].shape == (len(hidden_states), 8)
        assert (others["num_bits"], others["activation"], others["inplace"]) == (4, "silu", False)
        both = torch.stack([w1_global_scale] * 2, 1)
        call = hidden_states, others["topk_ids"], others["topk_weights"]
        return reference((w1, w1_scale, both, w2, w2_scale, w2_global_scale), call, others["clamp_limit"])

    for name, attributes in {
        "sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe": {"fused_marlin_moe": fused_marlin_moe},
        "sglang.srt.layers.quantization.marlin_utils_fp4": {"prepare_moe_nvfp4_layer_for_marlin": prepare},
    }.items():
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            parent = ".".join(parts[:i])
            if parent == name or parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        vars(sys.modules[name]).update(attributes)
    contestant = importlib.import_module("contestants").CONTESTANTS["marlin"].make(weights, {})
    assert torch.equal(contestant.call(case)(), reference(weights, case))
