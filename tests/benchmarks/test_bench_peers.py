"""Each peer of the kernel race gets the layer that its documents ask for.

The libraries are stood in for by modules that undo the documented layout and compute in float64. Whether the libraries
themselves keep to it is checked on a GPU, before each timing.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
KERNELS = str(Path(__file__).resolve().parents[2] / "benchmarks/kernels")
EXPERTS, HIDDEN, TOP_K, CLAMP = 4, 256, 2, 10.0


@pytest.fixture(scope="module", autouse=True)
def kernels_path():
    sys.path.insert(0, KERNELS)
    yield
    sys.path.remove(KERNELS)


def modules(monkeypatch, **contents):
    """Put stand-ins under dotted names (written with __ for the dots) where the imports look first."""
    for name, attributes in contents.items():
        dotted = name.replace("__", ".")
        parts = dotted.split(".")
        for i in range(1, len(parts)):
            parent = ".".join(parts[:i])
            if parent not in contents and parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        module = types.ModuleType(dotted)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, dotted, module)


def layer(inter):
    g = torch.Generator().manual_seed(5)
    draw = lambda low, high, *shape: torch.randint(low, high, shape, dtype=torch.uint8, generator=g)  # noqa: E731
    weights = (
        draw(0, 256, EXPERTS, 2 * inter, HIDDEN // 2), draw(121, 126, EXPERTS, 2 * inter, HIDDEN // 32),
        draw(0, 256, EXPERTS, HIDDEN, inter // 2), draw(119, 123, EXPERTS, HIDDEN, inter // 32),
    )  # fmt: skip
    x = torch.randn(6, HIDDEN, generator=g).to(torch.bfloat16)
    ids = torch.rand(6, EXPERTS, generator=g).topk(TOP_K, -1).indices.to(torch.int32)
    return weights, (x, ids, torch.rand(6, TOP_K, generator=g))


def reference(x, w13, s13, w2, s2, ids, probabilities, limit):
    moe = importlib.import_module("sglang_sm120.kernels.sm120.fp4_moe")
    w13, w2 = w13.view(torch.uint8), w2.view(torch.uint8)
    s13, s2 = s13.view(torch.uint8), s2.view(torch.uint8)
    return moe.reference.mxfp4_moe(x, w13, s13, w2, s2, ids, probabilities, swiglu_limit=limit)


def assert_same(got, weights, case):
    want = reference(case[0], *weights, case[1], case[2], CLAMP)
    unclamped = reference(case[0], *weights, case[1], case[2], 1e9)
    assert not torch.allclose(want, unclamped)  # the clamp is reached
    assert torch.allclose(got.double(), want, rtol=1e-2, atol=1e-2 * want.abs().max())


@pytest.mark.parametrize("inter", [96, 128])
def test_marlin_gets_gate_then_up_padded_to_128(monkeypatch, inter):
    def prepare(layer):
        assert layer.w13_weight.shape == (EXPERTS, 256, HIDDEN // 2)
        assert layer.w13_weight_scale_inv.dtype == torch.float8_e8m0fnu
        layer.w13_weight_scale, layer.w2_weight_scale = layer.w13_weight_scale_inv, layer.w2_weight_scale_inv
        layer.workspace = torch.zeros(1)

    def fused_marlin_moe(*, hidden_states, w1, w2, w1_scale, w2_scale, gating_output, topk_weights, topk_ids, **others):
        assert gating_output.shape == (len(hidden_states), EXPERTS)
        assert (others["num_bits"], others["activation"], others["inplace"]) == (4, "silu", False)
        return reference(hidden_states, w1, w1_scale, w2, w2_scale, topk_ids, topk_weights, others["clamp_limit"])

    modules(
        monkeypatch,
        sglang__srt__layers__moe__fused_moe_triton__fused_marlin_moe={"fused_marlin_moe": fused_marlin_moe},
        sglang__srt__layers__quantization__marlin_utils_fp4={"prepare_moe_mxfp4_layer_for_marlin": prepare},
    )
    contestant = importlib.import_module("contestants.sglang_marlin").Marlin
    weights, case = layer(inter)
    assert_same(contestant(weights, {}).call(case)(), weights, case)


def flashinfer(monkeypatch, compiled=True):
    """FlashInfer's documented SM90 layout: [up; gate], scales [E, K / 128, rows * 4]; alpha 1 and beta 0 by default."""

    def interleave_scales(scales, group_size):
        experts, rows, groups = scales.shape
        assert group_size == 32
        moved = scales.reshape(experts, rows, groups // 4, 4).permute(0, 2, 1, 3).contiguous()
        return moved.reshape(experts, groups // 4, rows * 4)

    def plain_scales(packed):
        experts, blocks, rows = packed.shape  # int32: four scales in each
        parts = packed.view(torch.uint8).view(experts, blocks, rows, 4).permute(0, 2, 1, 3)
        return parts.reshape(experts, rows, blocks * 4)

    def up_last(t):
        return torch.cat([t[:, t.shape[1] // 2 :], t[:, : t.shape[1] // 2]], 1)

    def cutlass_fused_moe(
        *, input, fc1_expert_weights, fc2_expert_weights, quant_scales, swiglu_limit, output, **others
    ):
        assert others["use_w4_group_scaling"]
        assert others["activation_type"] == "swiglu"
        assert "swiglu_alpha" not in others
        assert "swiglu_beta" not in others
        s13, s2 = map(plain_scales, quant_scales)
        result = reference(
            input, up_last(255 - fc1_expert_weights), up_last(s13), 255 - fc2_expert_weights, s2,
            others["token_selected_experts"], others["token_final_scales"], float(swiglu_limit[0]),
        )  # fmt: skip
        output.copy_(result)
        calls.append(others["tune_max_num_tokens"])

    class Tuner:
        tuning = None

        @classmethod
        def get(cls):
            return cls

    class Tuning:
        def __init__(self, mode, tuning_buckets):
            self.buckets = tuning_buckets

        def __enter__(self):
            calls.append(self.buckets)

        def __exit__(self, *_):
            calls.append("tuned")

    calls = []
    spec = types.SimpleNamespace(name="fused_moe_90", is_compiled=compiled, sources=["a", "b"])
    modules(
        monkeypatch,
        flashinfer__fused_moe={
            "cutlass_fused_moe": cutlass_fused_moe, "interleave_moe_scales_for_sm90_mixed_gemm": interleave_scales,
            "interleave_moe_weights_for_sm90_mixed_gemm": lambda w, kind: 255 - w if kind == "fp4" else None,
        },
        flashinfer__jit__fused_moe={"gen_cutlass_fused_moe_sm90_module": lambda: spec},
        flashinfer__tllm_enums={"ActivationType": types.SimpleNamespace(Swiglu="swiglu")},
        flashinfer__autotuner={"AutoTuner": Tuner, "autotune": Tuning},
    )  # fmt: skip
    return calls


@pytest.mark.parametrize("inter", [96, 128])
def test_flashinfer_gets_up_then_gate_and_interleaved_scales(monkeypatch, inter):
    calls = flashinfer(monkeypatch)
    contestant = importlib.import_module("contestants.flashinfer_sm90").FlashInferSm90
    weights, case = layer(inter)
    built = contestant(weights, {})
    assert_same(built.call(case)(), weights, case)
    built.call(case)
    assert calls == [(6,), 8, "tuned", 8]  # tuned once for its token count, then timed


def test_flashinfer_does_not_start_to_compile_in_the_race(monkeypatch):
    flashinfer(monkeypatch, compiled=False)
    contestant = importlib.import_module("contestants.flashinfer_sm90").FlashInferSm90
    with pytest.raises(RuntimeError, match="fused_moe_90 is not compiled: 2 sources"):
        contestant(layer(128)[0], {})


def test_humming_gets_the_checkpoints_layout(monkeypatch):
    class Input(types.SimpleNamespace):
        pass

    class Core:
        def __init__(self, config):
            self.limit = config.swiglu_limit
            assert (config.num_experts, config.num_local_experts, config.activation) == (EXPERTS, EXPERTS, "silu")

        def run(self, asked, info, _):
            assert asked.gemm_type == "indexed"
            w = info.layer
            out = reference(
                asked.hidden_states, w.w13_weight, w.w13_weight_scale, w.w2_weight, w.w2_weight_scale, asked.topk_ids,
                asked.topk_weights, self.limit,
            )  # fmt: skip
            return types.SimpleNamespace(hidden_states=out)

    def prepare(layer, config):
        assert config == {"quant_method": "mxfp4"}
        assert (layer.num_local_experts, layer.hidden_size, layer.intermediate_size_per_partition) == (4, HIDDEN, 96)
        assert layer.w13_weight_scale.dtype == torch.float8_e8m0fnu
        assert (layer.params_dtype, layer.with_bias) == (torch.bfloat16, False)

    modules(
        monkeypatch,
        sglang__srt__layers__moe__moe_runner__base={"MoeRunnerConfig": types.SimpleNamespace},
        sglang__srt__layers__moe__moe_runner__humming={
            "HummingMoeQuantInfo": types.SimpleNamespace, "HummingRunnerCore": Core, "HummingRunnerInput": Input,
        },
        sglang__srt__layers__quantization__humming_utils={"prepare_humming_moe_layer": prepare},
        humming__config={"GemmType": types.SimpleNamespace(INDEXED="indexed")},
    )  # fmt: skip
    contestant = importlib.import_module("contestants.humming_moe").Humming
    weights, case = layer(96)
    kept = [t.clone() for t in weights]
    built = contestant(weights, {})
    assert_same(built.call(case)(), weights, case)
    for name, _ in built.info.layer.named_parameters():
        getattr(built.info.layer, name).data.view(torch.uint8).zero_()
    assert all(torch.equal(a, b) for a, b in zip(weights, kept, strict=True))  # others still need the weights
