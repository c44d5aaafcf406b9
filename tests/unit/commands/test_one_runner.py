"""The checks that a runner has to pass: what a right kernel may lose by rounding, and the faults that they must see."""

import functools
from types import SimpleNamespace

import pytest
import torch

from sglang_sm120.commands.one_runner import build, cases, checks, child
from sglang_sm120.commands.one_runner.weights import RandomExperts, Sizes
from sglang_sm120.kernels.sm120 import fp4_moe

CPU = torch.device("cpu")
SIZES = Sizes(8, 256, 128, 2, 1, 1, 10.0, 1.5)
TOKENS = (1, 2, 6)


@pytest.fixture(autouse=True)
def alone():
    """Threads of small products would wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def experts(nvfp4=True, sizes=SIZES):
    made = RandomExperts(sizes, nvfp4, "layers.0", CPU)
    for _ in made.tensors():
        pass
    return made


def verdicts(call, made, bound, tokens=TOKENS):
    """Case -> its row, for a layer that computes `call`."""
    found = cases.checked(made.sizes, made.nvfp4, tokens, CPU, 0)
    return {c.name: checks.compared(call, made.reference, c, checks.BOUNDS[bound]) for c in found}


def wrong(rows):
    return [name for name, row in rows.items() if not row["right"]]


def changed(made, **changes):
    """The experts with other values of some attributes, as a runner that reads them otherwise computes."""
    other = RandomExperts.__new__(RandomExperts)
    vars(other).update(vars(made) | changes)
    return lambda x, ids, weights: other.reference(x, ids, weights).bfloat16()


@pytest.mark.parametrize("nvfp4", [True, False])
def test_a_result_that_is_rounded_is_right(nvfp4):
    made = experts(nvfp4)
    rows = verdicts(changed(made), made, "bf16")
    assert wrong(rows) == []
    names = ["uniform T=1", "uniform T=2", "shared T=2", "uniform T=6", "shared T=6", "clamp T=6"]
    assert list(rows) == names + (["gate and up apart T=6"] if nvfp4 else [])
    assert all(row["repeats"] for row in rows.values())


def test_activations_in_mxfp8_stay_below_their_bound_and_above_that_of_bf16():
    made = experts(nvfp4=False)

    def mxfp8(x, ids, weights):
        (w13, w2), (s13, s2) = made.codes, made.scales
        given = {"swiglu_limit": 10.0, "routed_scaling_factor": 1.5, "activation": "mxfp8"}
        return fp4_moe.reference.mxfp4_moe(x, w13, s13, w2, s2, ids, weights, **given)

    assert wrong(verdicts(mxfp8, made, "mxfp8")) == []
    assert wrong(verdicts(mxfp8, made, "bf16"))


def test_activations_in_nvfp4_stay_below_their_bound_and_above_that_of_mxfp8(monkeypatch):
    made = experts()

    def e2m1(x):
        blocks = x.double().unflatten(-1, (-1, 16))
        scale = (blocks.abs().amax(-1, keepdim=True) / 6).clamp(min=1e-9)
        values = torch.tensor(fp4_moe.reference.E2M1_VALUES, dtype=torch.float64)
        nearest = ((blocks / scale)[..., None] - values).abs().argmin(-1)
        return (values[nearest] * scale).flatten(-2)

    real = fp4_moe.reference._moe

    def rounded(*given, **more):
        return real(*given, **more | {"rounding": e2m1})

    def nvfp4(x, ids, weights):
        with monkeypatch.context() as patched:
            patched.setattr(fp4_moe.reference, "_moe", rounded)
            return made.reference(x, ids, weights)

    assert wrong(verdicts(nvfp4, made, "nvfp4", (1, 6))) == []
    assert wrong(verdicts(nvfp4, made, "mxfp8", (1, 6)))


@pytest.mark.parametrize("bound", list(checks.BOUNDS))
def test_a_clamp_that_is_left_out_is_seen_whatever_the_activations_are(bound):
    made = experts()
    without = changed(made, sizes=Sizes(8, 256, 128, 2, 1, 1, None, 1.5))
    assert "clamp T=6" in wrong(verdicts(without, made, bound, (6,)))


@pytest.mark.parametrize("bound", list(checks.BOUNDS))
def test_gates_scale_for_up_is_seen_in_its_own_case_alone(bound):
    made = experts()
    factors = made.factors.clone()
    factors[:, 1] = factors[:, 0]
    rows = verdicts(changed(made, factors=factors), made, bound)
    assert wrong(rows) == ["gate and up apart T=6"]
    assert rows["gate and up apart T=6"]["apart"]


@pytest.mark.parametrize("bound", list(checks.BOUNDS))
def test_other_faults_are_seen(bound):
    made = experts()
    right = changed(made)
    unscaled = changed(made, sizes=Sizes(8, 256, 128, 2, 1, 1, 10.0, 1.0))
    swapped = changed(made, codes=(made.codes[0].roll(128, 1), made.codes[1]))
    for call in (unscaled, swapped):
        assert len(wrong(verdicts(call, made, bound))) == len(TOKENS) * 2 - 1 + 2

    def one_token(x, ids, weights):
        y = right(x, ids, weights)
        y[len(y) // 2] = 0
        return y

    def not_finite(x, ids, weights):
        y = right(x, ids, weights)
        y[0, 0] = float("nan")
        return y

    for call in (one_token, not_finite):
        assert "uniform T=64" in wrong(verdicts(call, made, bound, (64,)))


def test_a_layer_that_does_not_repeat_itself_is_seen():
    made, calls = experts(), []

    def unsteady(x, ids, weights):
        calls.append(1)
        return changed(made)(x, ids, weights) * (1 + 2**-7 * (len(calls) % 2))

    rows = verdicts(unsteady, made, "nvfp4", (1,))
    assert not rows["uniform T=1"]["repeats"]


def test_a_rank_of_expert_parallelism_sees_others_experts_and_padding():
    sizes = Sizes(8, 256, 128, 2, 2, 2, 10.0, 1.5)
    made = experts(sizes=sizes)
    rows = verdicts(changed(made), made, "bf16")
    assert wrong(rows) == []
    assert "padded T=6" in rows

    def pads(x, ids, weights):
        return changed(made)(x, ids.clamp(min=0), weights)

    assert "padded T=6" in wrong(verdicts(pads, made, "nvfp4"))


@pytest.mark.parametrize(("tp", "ep", "rows"), [(2, 1, 64), (2, 2, 128), (4, 2, 64)])
def test_a_rank_keeps_its_share_of_what_the_loader_gets(tp, ep, rows):
    made = RandomExperts(Sizes(8, 256, 128, 2, tp, ep, 10.0, 1.0), True, "layers.0", CPU)
    whole = dict(made.tensors())
    assert len(made.codes[0]) == 8 // ep
    for expert in (0, 8 // ep - 1):
        name = f"layers.0.ffn.experts.{expert}"
        assert torch.equal(made.codes[0][expert, :rows], whole[f"{name}.w1.weight"][:rows])
        assert torch.equal(made.codes[0][expert, rows:], whole[f"{name}.w3.weight"][:rows])
        assert torch.equal(made.codes[1][expert], whole[f"{name}.w2.weight"][:, : rows // 2])
        assert made.factors[expert].tolist() == [float(whole[f"{name}.{w}.weight_scale_2"]) for w in ("w1", "w3", "w2")]
    assert {n for n, _ in made.tensors()} == set(whole)


def test_every_process_of_a_comparison_times_the_same_inputs():
    first, second = (cases.timed(SIZES, 8, 4, CPU, 0) for _ in range(2))
    assert all(torch.equal(a.ids, b.ids) and torch.equal(a.x, b.x) for a, b in zip(first, second, strict=True))
    assert len({tuple(c.ids.flatten().tolist()) for c in first}) == 4


def test_a_layer_of_another_runner_is_refused():
    layer = SimpleNamespace(quant_method=type("Mxfp4FlashinferTrtllmMoEMethod", (), {})())
    with pytest.raises(
        build.RefusedError, match="built Mxfp4FlashinferTrtllmMoEMethod instead of Mxfp4MarlinMoEMethod"
    ):
        build.require_runner(layer, "mxfp4", "marlin")
    build.require_runner(layer, "mxfp4", "a_plugin_s")


def test_a_runner_that_nobody_knows_gets_the_widest_bound():
    assert checks.activations("mxfp4", "a_plugin_s", 12) == max(checks.BOUNDS, key=checks.BOUNDS.get)
    assert checks.activations("mxfp4", "flashinfer_mxfp4", 9) == "bf16"
    assert checks.activations("mxfp4", "flashinfer_mxfp4", 12) == "mxfp8"
    assert checks.activations("mxfp4", "sm120_triton", 12, "mxfp8") == "mxfp8"


def test_a_full_gpu_says_nothing_of_a_runner(monkeypatch):
    """The copy for the bandwidth needs 4 GiB beside the layers, and a runner that is right stays."""

    def full(*_args, **_more):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "randint", full)
    assert list(child.answers('{"do": "bandwidth"}', first=False))[-1] == {"done": "no room", "bytes_per_s": None}
