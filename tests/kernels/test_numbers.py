"""Numbers of the layer against float64, at the ends of the formats and with values that must not spread."""

from __future__ import annotations

import pytest
import torch
from layers import form_of, pack, random_call, random_layer, relative

from sglang_sm120.kernels.sm120 import fp4_moe as moe


def test_every_code_with_every_scale_byte(device):
    """w2 holds all 16 codes in both nibbles under each of the 256 scale bytes; one-hot activations show each product.

    0 is 2**-127 and 255 is NaN, which stays in its row of w2, a column of the output. Tolerance: two bf16 roundings,
    2**-8.
    """
    n, experts = 64, 2
    k = torch.arange(n)
    codes = ((k // 2 + 8 * (k % 2)) + torch.arange(n)[:, None]) % 16
    scale = torch.arange(experts * n * 2).reshape(experts, n, 2).to(torch.uint8)
    eye = torch.eye(n, dtype=torch.int64)
    gate, up = torch.full((n, n), 7), 2 * eye  # 6.0 everywhere; 1.0 on the diagonal
    w13 = pack(torch.cat([gate, up]).expand(experts, 2 * n, n)).to(device)
    s13 = torch.full((experts, 2 * n, n // 32), 127, dtype=torch.uint8, device=device)
    w2, s2 = pack(codes.expand(experts, n, n)).to(device), scale.to(device)
    x = torch.eye(n, dtype=torch.bfloat16, device=device).repeat(experts, 1)
    ids = torch.arange(experts, dtype=torch.int32, device=device).repeat_interleave(n)[:, None]
    ones = torch.ones(len(ids), 1, device=device)
    want = moe.reference.mxfp4_moe(x, w13, s13, w2, s2, ids, ones, swiglu_limit=None)
    w = moe.prepare_mxfp4(w13.clone(), s13.clone(), w2.clone(), s2.clone())
    assert w.wide_scales
    got = moe.fp4_moe(x, w, ids, ones, swiglu_limit=None).double()
    assert torch.equal(got.isnan(), want.isnan())
    assert int(want.isnan().sum()) == n  # one row, under every token of its expert
    representable = want.abs() < 2.0**127
    finite = representable & ~want.isnan()
    assert ((got - want).abs() <= 2.0**-8 * want.abs() + 2.0**-133)[finite].all()
    assert (got.abs()[~representable & ~want.isnan()] >= 2.0**126).all()


@pytest.mark.parametrize("byte", [200, 254])
def test_the_smallest_normal_activations_meet_every_scale(byte, device):
    """x = 2**-126 under the largest scales counts as much as x = 1 under a middle one."""
    tensors = list(random_layer(3, 96, 64, 21, device))
    tensors[1].fill_(byte)
    x, ids, weights = random_call(5, 2, 3, 96, 22, device)
    x = x.sign() * 2.0**-126
    want = moe.reference.mxfp4_moe(x, *tensors, ids, weights)
    w = moe.prepare_mxfp4(*tensors)
    assert w.wide_scales
    y = moe.fp4_moe(x, w, ids, weights)
    assert float(want.norm()) > 0
    assert relative(y, want) <= 3e-3


@pytest.mark.parametrize("tokens", [1, 5, 70])
@pytest.mark.parametrize("activation", ["bf16", "mxfp8"])
def test_error_against_the_oracle(tokens, activation, device):
    """bf16: three roundings to bf16 (intermediate, perhaps partial, output) of relative RMS up to 1.7e-3 stay under
    3e-3 together. mxfp8 against the oracle that rounds alike: the same limit; against the exact one about 5e-2."""
    hidden, inter, experts, top_k = (1024, 288, 8, 6) if device == "cuda" else (128, 64, 4, 2)
    tensors = random_layer(experts, hidden, inter, 3, device)
    x, ids, weights = random_call(tokens, top_k, experts, hidden, 4, device)
    rounding = "mxfp8" if activation == "mxfp8" else "exact"
    want = moe.reference.mxfp4_moe(x, *tensors, ids, weights, activation=rounding)
    exact = moe.reference.mxfp4_moe(x, *tensors, ids, weights)
    y = moe.fp4_moe(x, moe.prepare_mxfp4(*tensors), ids, weights, activation=activation)
    assert relative(y, want) <= 3e-3
    # A single value may be off by 2e-2 of the RMS, or of itself where it is larger (its own rounding is up to 2**-9 of
    # it).
    scale = torch.maximum(want.square().mean().sqrt(), want.abs())
    assert float(((y.double() - want).abs() / scale).max()) <= 2e-2 or activation == "mxfp8"
    assert relative(y, exact) <= (1e-1 if activation == "mxfp8" else 3e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("activation", ["bf16", "mxfp8"])
def test_a_bad_token_harms_only_itself(value, activation, device):
    tensors = random_layer(3, 96, 64, 5, device)
    x, ids, weights = random_call(6, 2, 3, 96, 6, device)
    ids[:] = torch.tensor([1, 2], device=device)  # all share their experts
    w = moe.prepare_mxfp4(*tensors)
    clean = moe.fp4_moe(x, w, ids, weights, activation=activation)
    x[2, 40] = value
    y = moe.fp4_moe(x, w, ids, weights, activation=activation)
    others = torch.arange(6, device=device) != 2
    assert torch.equal(y[others], clean[others])


def test_masked_slots_contribute_nothing(device):
    """Weights and experts of ids outside 0 .. E-1 do not matter: NaN, 2**40 and the most negative int64 included."""
    tensors = random_layer(4, 96, 64, 7, device)
    x, ids, weights = random_call(5, 3, 4, 96, 8, device)
    ids = ids.long()
    w = moe.prepare_mxfp4(*tensors)
    ids[:, 1] = -1
    want = moe.fp4_moe(x, w, ids, weights)
    for bad in (4, 2**40 + 1, -(2**63), 2**32 + 1):
        ids[:, 1] = bad
        weights[:, 1] = float("nan")
        assert torch.equal(moe.fp4_moe(x, w, ids, weights), want)
        with pytest.raises(ValueError, match="topk_ids"):
            moe.fp4_moe(x, w, ids, weights, check_ids=True)


@pytest.mark.parametrize("tokens", [9, 40])
def test_batch_invariant(tokens, device):
    """A token's bits alone, in a small and in a larger batch, whatever tile and regime each takes."""
    hidden, inter, experts, top_k = (512, 256, 4, 2) if device == "cuda" else (128, 64, 2, 1)
    w = moe.prepare_mxfp4(*random_layer(experts, hidden, inter, 9, device))
    x, ids, weights = random_call(tokens, top_k, experts, hidden, 10, device)
    together = moe.fp4_moe(x, w, ids, weights, batch_invariant=True)
    for t in (0, tokens - 1):
        part = slice(t, t + 1)
        alone = moe.fp4_moe(x[part], w, ids[part], weights[part], batch_invariant=True)
        assert torch.equal(alone[0], together[t])


@pytest.mark.parametrize("hidden", [256, 512, 768])
@pytest.mark.parametrize(("low", "high"), [(119, 124), (90, 128)])
def test_two_steps_a_pass_change_no_bit(hidden, low, high, device):
    """Loops of one, two and three passes, which begin elsewhere in K for each 64 rows, and both ranges of scales."""
    from sglang_sm120.kernels.sm120.fp4_moe.host import tuning
    from sglang_sm120.kernels.sm120.tile_tables import Tile

    inter, experts, tokens = 256, 2, 3
    tensors = random_layer(experts, hidden, inter, hidden + low, device, low, high)
    x, ids, weights = random_call(tokens, 1, experts, hidden, 8, device)
    ids[1] = -1
    want = moe.reference.mxfp4_moe(x, *tensors, ids, weights)
    w = moe.prepare_mxfp4(*tensors)
    assert w.wide_scales == (low < 100)
    results = []
    for tile in (Tile(32, 8), Tile(32, 8, unroll=2), Tile(32, 8, 4, 2, unroll=2), Tile(64, 8, warps=2, unroll=2)):
        with tuning.trying((tile, tile)):
            results.append(moe.fp4_moe(x, w, ids, weights))
    assert all(torch.equal(y, results[0]) for y in results)
    assert relative(results[0], want) <= 3e-3


def test_float32_scales_at_the_ends(device):
    tensors = list(random_layer(2, 64, 32, 11, device, 1, 255))
    tensors[3][0, 0, 0], tensors[3][0, 1, 0] = 0, 255
    as_float = [moe.reference.scale_to_float64(tensors[i]).float() for i in (1, 3)]
    a = moe.prepare_mxfp4(*(t.clone() for t in tensors))
    b = moe.prepare_mxfp4(tensors[0].clone(), as_float[0], tensors[2].clone(), as_float[1])
    assert torch.equal(a.w13_scale, b.w13_scale)
    assert torch.equal(a.w2_scale, b.w2_scale)


def test_strided_activations_and_output(device):
    w = moe.prepare_mxfp4(*random_layer(2, 64, 32, 12, device))
    x, ids, weights = random_call(4, 2, 2, 64, 13, device)
    want = moe.fp4_moe(x, w, ids, weights)
    wide = torch.zeros(4, 80, dtype=torch.bfloat16, device=device)
    wide[:, 8:72] = x
    out = torch.zeros(4, 128, dtype=torch.bfloat16, device=device)[:, :64]
    assert torch.equal(moe.fp4_moe(wide[:, 8:72], w, ids, weights, out=out), want)
    odd = torch.zeros(4, 65, dtype=torch.bfloat16, device=device)[:, 1:]
    odd.copy_(x)
    assert torch.equal(moe.fp4_moe(odd, w, ids, weights), want)


def test_weights_must_be_contiguous(device):
    tensors = list(random_layer(2, 64, 32, 14, device))
    tensors[0] = tensors[0].transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.raises(ValueError, match=r"w13.*contiguous"):
        moe.prepare_mxfp4(*tensors)


@pytest.mark.gpu
def test_offsets_beyond_two_to_the_31(device):
    """The last of 384 experts of V4-Pro's size starts 8 GB into w13."""
    experts, hidden, inter = 384, 7168, 3072
    g = torch.Generator(device=device).manual_seed(0)
    w13 = torch.randint(0, 256, (experts, 2 * inter, hidden // 2), dtype=torch.uint8, device=device, generator=g)
    w2 = torch.randint(0, 256, (experts, hidden, inter // 2), dtype=torch.uint8, device=device, generator=g)
    s13 = torch.full((experts, 2 * inter, hidden // 32), 118, dtype=torch.uint8, device=device)
    s2 = torch.full((experts, hidden, inter // 32), 118, dtype=torch.uint8, device=device)
    last = [t[-1:].clone() for t in (w13, s13, w2, s2)]
    x, _, weights = random_call(3, 1, 1, hidden, 1, device)
    zero = torch.zeros(3, 1, dtype=torch.int32, device=device)
    want = moe.reference.mxfp4_moe(x, *last, zero, weights)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    w = moe.prepare_mxfp4(w13, s13, w2, s2)
    assert torch.cuda.max_memory_allocated() - before < 128 << 20
    y = moe.fp4_moe(x, w, zero + experts - 1, weights)
    assert relative(y, want) <= 3e-3


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 2, 6, 32, 256])
def test_a_graph_replayed_a_thousand_times(tokens, device):
    """Changing routing, no allocation while replaying, the same bits as without a graph."""
    experts, hidden, inter, top_k = 32, 1024, 288, 6
    w = moe.prepare_mxfp4(*random_layer(experts, hidden, inter, 1, device))
    x, ids, weights = random_call(tokens, top_k, experts, hidden, 2, device)
    out = torch.empty_like(x)
    moe.fp4_moe(x, w, ids, weights, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        moe.fp4_moe(x, w, ids, weights, out=out)
    calls = [random_call(tokens, top_k, experts, hidden, 10 + i, device) for i in range(10)]
    want = [moe.fp4_moe(a, w, b, c) for a, b, c in calls]
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    equal = torch.empty_like(out, dtype=torch.bool)
    for i in range(1000):
        for held, new in zip((x, ids, weights), calls[i % 10], strict=True):
            held.copy_(new)
        graph.replay()
        if i % 10 == 9:
            torch.eq(out, want[9], out=equal)
            assert bool(equal.all())
    assert int(wrong) == 0
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - allocated < 1000  # only the comparisons' scalars


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 33, 700])
def test_a_hundred_runs_give_the_same_bits(tokens, device):
    w = moe.prepare_mxfp4(*random_layer(16, 1024, 512, 1, device))
    x, ids, weights = random_call(tokens, 6, 16, 1024, 2, device)
    first = moe.fp4_moe(x, w, ids, weights)
    assert all(torch.equal(first, moe.fp4_moe(x, w, ids, weights)) for _ in range(100))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(512, 288), (4096, 512), (96, 32), (7168, 192)])
def test_the_native_mxfp8_path_where_it_is_emulated(shape, device):
    """The e4m3 decode, scale order and epilogue that SM120 uses, through Triton's bf16 lowering of `dot_scaled`."""
    from sglang_sm120.kernels.sm120.fp4_moe.host import program

    (hidden, inter), experts = shape, 8
    tensors = random_layer(experts, hidden, inter, 5, device)
    for tokens in (1, 5, 64, 300):
        x, ids, weights = random_call(tokens, 2, experts, hidden, tokens, device)
        x[0, 0] = 0
        want = moe.reference.mxfp4_moe(x, *tensors, ids, weights, activation="mxfp8")
        y = torch.empty_like(x)
        w = moe.prepare_mxfp4(*(t.clone() for t in tensors))
        form = form_of(x, ids, experts, inter, mxfp8=True, fp8=True)
        program.Program(form).run(x, w, ids, weights, y)
        assert relative(y, want) <= 3e-3
