"""NVFP4 layers against float64, in every regime, and each product with every code under every scale."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl
from layers import form_of, random_call, random_nvfp4, relative

from sglang_sm120.kernels.sm120 import fp4_moe as moe
from sglang_sm120.kernels.sm120.fp4_moe import runtime
from sglang_sm120.kernels.sm120.fp4_moe.device.product_bf16 import accumulate
from sglang_sm120.kernels.sm120.fp4_moe.device.product_wgmma import accumulate_wgmma
from sglang_sm120.kernels.sm120.fp4_moe.device.product_wide import accumulate_wide
from sglang_sm120.kernels.sm120.fp4_moe.host import program, tuning
from sglang_sm120.kernels.sm120.fp4_moe.weights import layout
from sglang_sm120.kernels.sm120.fp4_moe.weights.repack import repack
from sglang_sm120.kernels.sm120.tile_tables import Tile


@runtime.kernel
def product(
    x_ptr, w_ptr, s_ptr, o_ptr, N: tl.constexpr, K: tl.constexpr, WAY: tl.constexpr, BN: tl.constexpr, ASM: tl.constexpr
):  # fmt: skip
    """o [K, N]: a matrix times the unit vectors, by one of the three products, 32 of them a program."""
    tile, token = tl.program_id(0), tl.program_id(1) * 32 + tl.arange(0, 32)
    valid, x_rows = token < K, x_ptr + token * K
    if WAY == "few":
        acc = accumulate(w_ptr, s_ptr, x_rows, valid, tile, N, K, BN, 32, 2, 1, 2, 56, False, True, ASM)
    elif WAY == "wide":
        acc = accumulate_wide(w_ptr, s_ptr, x_rows, valid, tile, N, K, BN, 32, 1, 2, True, ASM)
    else:
        acc = accumulate_wgmma(w_ptr, s_ptr, x_rows, valid, tile, N, K, BN, 32, 1, 2, False, True, ASM)
    row = tile * BN + tl.arange(0, BN)
    tl.store(o_ptr + token[None, :] * N + row[:, None], acc, mask=valid[None, :] & (row < N)[:, None])


@pytest.mark.parametrize(("way", "columns"), [(way, n) for way in ("few", "wide", "wgmma") for n in (32, 64, 96)])
def test_every_code_under_every_scale_in_every_place(way, columns, device):
    """16 codes x 126 scales above 0 in each column of a superblock, and of the last half one: exact, each of them."""
    if way == "wgmma" and device == "cuda" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("this product is SM90's")
    rows, asm = 2048, device == "cuda"
    r, c = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    codes = (r + c) % 16
    scale = ((r // 16 + 5 * torch.arange(columns // 16)) % 126 + 1).to(torch.uint8)
    pairs = {(int(a), int(b)) for a, b in zip(codes[:, 7], scale[:, 0], strict=True)}
    assert len(pairs) == 16 * 126
    want = moe.reference.dequantize_nvfp4((codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), scale)
    w = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)[None].to(device)
    prepared = scale[None].to(device).contiguous()
    repack(w, prepared, moe.NVFP4, gated=False, forward=True)
    out = torch.full((columns, rows), float("nan"), device=device)
    x = torch.eye(columns, dtype=torch.bfloat16, device=device)
    block = 128 if way != "few" else 64
    args = [x, w, prepared.view(-1).view(torch.int32), out]
    options = {"N": rows, "K": columns, "WAY": way, "BN": block, "ASM": asm}
    grid = (rows // block, -(-columns // 32))
    if asm:
        product.compiled[grid](*args, **options, num_warps={"few": 2}.get(way, 4))
    else:
        product.interpret(grid, args, options)
    if way == "wgmma":
        want = want.view(rows, -1, 32)[..., list(layout.WGMMA_ORDER)].reshape(rows, columns)
    assert torch.equal(out.T.double().cpu() * (2.0**7 if asm else 1), want)


# No rounding to bf16 is off by more than 2**-9 of the value, and there are three: intermediate, partial result, output.
# Twice that, because the few values of a small layer, some under the largest scale, partly cancel.
ROUNDINGS = 2 * 3**0.5 * 2.0**-9
SHAPES = [  # experts, hidden, inter, tokens, top_k, limit; few routes, sorted ones, many; odd multiples of 32
    (3, 96, 32, 1, 2, 10.0), (4, 160, 96, 5, 3, 10.0), (2, 64, 64, 3, 2, None), (4, 96, 64, 20, 2, 10.0),
    (2, 160, 32, 30, 2, None), (1, 64, 96, 60, 1, 10.0), (2, 128, 128, 20, 2, 10.0), (1, 256, 128, 33, 1, None),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "E{}-H{}-I{}-T{}-K{}-limit{}".format(*s))
def test_error_against_the_oracle(shape, device):
    """In every regime; up's globals are ten times gate's."""
    experts, hidden, inter, tokens, top_k, limit = shape
    if device == "cuda":
        hidden, inter, tokens = 8 * hidden, 4 * inter + 32 * (inter % 64 > 0), 3 * tokens
    tensors = random_nvfp4(experts, hidden, inter, tokens, device, apart=10.0)
    x, ids, weights = random_call(tokens, top_k, experts, hidden, 4, device)
    ids[0, -1] = -1
    x *= 0.05 if limit is None else 1.0
    more = {"swiglu_limit": limit, "routed_scaling_factor": 1.5}
    want = moe.reference.nvfp4_moe(x, *tensors, ids, weights, **more)
    out = torch.full_like(x, float("nan"))
    y = moe.fp4_moe(x, moe.prepare_nvfp4(*(t.clone() for t in tensors)), ids, weights, out=out, **more)
    assert relative(y, want) <= ROUNDINGS
    assert torch.isfinite(y).all()


def test_every_expert_has_its_own_globals(device):
    tensors = list(random_nvfp4(4, 96, 64, 5, device))
    tensors[2] = tensors[2] * torch.tensor([[1, 8], [4, 1], [0.5, 0.1], [2, 3]], device=device)
    tensors[5] = tensors[5] * torch.tensor([1, 100, 0.01, 3], device=device)
    x, _, weights = random_call(8, 1, 4, 96, 6, device)
    ids = torch.arange(8, dtype=torch.int32, device=device)[:, None] % 4
    want = moe.reference.nvfp4_moe(x, *tensors, ids, weights)
    y = moe.fp4_moe(x, moe.prepare_nvfp4(*(t.clone() for t in tensors)), ids, weights)
    for expert in range(4):  # apart: a small one's error would hide behind a large one
        assert relative(y[expert::4], want[expert::4]) <= ROUNDINGS


def test_scales_of_zero_and_the_ends_of_the_activations(device):
    """Small and large x, exact as far as bf16 is; zeros stay zeros."""
    n = 32
    eye, six = 2 * torch.eye(n, dtype=torch.int64), torch.full((n, n), 7)
    up = torch.cat([six, eye])
    w13 = (up[:, ::2] | up[:, 1::2] << 4).to(torch.uint8)[None].to(device)
    w2 = (eye[:, ::2] | eye[:, 1::2] << 4).to(torch.uint8)[None].to(device)
    one = torch.full((1, 2 * n, 2), 0x38, dtype=torch.uint8, device=device)
    s2 = torch.full((1, n, 2), 0x38, dtype=torch.uint8, device=device)
    one[:, n:], s2[0, 3] = 0x01, 0  # 2**-9; a row of zeros
    tensors = w13, one, torch.tensor([[1.0, 2.0**9]], device=device), w2, s2, torch.ones(1, device=device)
    for exponent in (-50, 0, 60):
        x = torch.eye(n, dtype=torch.bfloat16, device=device) * 2.0**exponent
        ids, weights = torch.zeros(n, 1, dtype=torch.int32, device=device), torch.ones(n, 1, device=device)
        want = moe.reference.nvfp4_moe(x, *tensors, ids, weights, swiglu_limit=None)
        y = moe.fp4_moe(x, moe.prepare_nvfp4(*(t.clone() for t in tensors)), ids, weights, swiglu_limit=None).double()
        assert ((y - want).abs() <= 2.0**-7 * want.abs()).all()
        assert (y[:, 3] == 0).all()
        assert bool((y.diagonal()[4:] > 0).all())


@pytest.mark.parametrize(("tokens", "width"), [(10, 16), (20, 32), (50, 64), (150, 128)])
@pytest.mark.parametrize("inter", [192, 256])
def test_wide_groups_of_sm90(tokens, width, inter, sm90):
    """Its wgmma form, in the interpreter; x has a stride."""
    tensors = random_nvfp4(1, 128, inter, 3, "cpu", apart=10.0)
    x, ids, weights = random_call(tokens, 1, 1, 128, 4, "cpu")
    want = moe.reference.nvfp4_moe(x, *tensors, ids, weights)
    x = torch.cat([x, torch.full((tokens, 16), float("nan"), dtype=x.dtype)], 1)
    form = form_of(x, ids, 1, inter, hidden=128, weights=moe.NVFP4)
    plan = program.plan(form)
    assert (plan.many, plan.gate_up.tokens) == (True, width)
    y = torch.full((tokens, 128), float("nan"), dtype=torch.bfloat16)
    program.Program(form).run(x, moe.prepare_nvfp4(*tensors), ids, weights, y)
    assert relative(y, want) <= ROUNDINGS


@pytest.mark.parametrize("hidden", [256, 768])
def test_tiles_change_no_bit(hidden, device):
    """One and three passes, one or two steps a pass, one or two warps."""
    inter, experts, tokens = 256, 2, 3
    w = moe.prepare_nvfp4(*random_nvfp4(experts, hidden, inter, hidden, device))
    x, ids, weights = random_call(tokens, 1, experts, hidden, 8, device)
    results = []
    for tile in (Tile(32, 8), Tile(32, 8, unroll=2), Tile(32, 8, 4, 2, unroll=2), Tile(64, 8, warps=2, unroll=2)):
        with tuning.trying((tile, tile)):
            results.append(moe.fp4_moe(x, w, ids, weights))
    assert all(torch.equal(y, results[0]) for y in results)


@pytest.mark.parametrize("tokens", [9, 40])
def test_batch_invariant(tokens, device):
    hidden, inter, experts, top_k = (512, 256, 4, 2) if device == "cuda" else (128, 64, 2, 1)
    w = moe.prepare_nvfp4(*random_nvfp4(experts, hidden, inter, 9, device))
    x, ids, weights = random_call(tokens, top_k, experts, hidden, 10, device)
    together = moe.fp4_moe(x, w, ids, weights, batch_invariant=True)
    for t in (0, tokens - 1):
        part = slice(t, t + 1)
        alone = moe.fp4_moe(x[part], w, ids[part], weights[part], batch_invariant=True)
        assert torch.equal(alone[0], together[t])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_token_harms_only_itself(value, device):
    x, ids, weights = random_call(6, 2, 3, 96, 6, device)
    ids[:] = torch.tensor([1, 2], device=device)
    w = moe.prepare_nvfp4(*random_nvfp4(3, 96, 64, 5, device))
    clean = moe.fp4_moe(x, w, ids, weights)
    x[2, 40] = value
    others = torch.arange(6, device=device) != 2
    assert torch.equal(moe.fp4_moe(x, w, ids, weights)[others], clean[others])


def test_activations_of_8_bits_are_refused(device):
    x, ids, weights = random_call(2, 2, 3, 96, 6, device)
    w = moe.prepare_nvfp4(*random_nvfp4(3, 96, 64, 5, device))
    with pytest.raises(
        ValueError, match="activation is 'mxfp8', expected 'bf16' with NVFP4 weights: no block-scaled MMA"
    ):
        moe.fp4_moe(x, w, ids, weights, activation="mxfp8")


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 6, 33, 256, 3000])
def test_graphs_and_repetition_keep_every_bit(tokens, device):
    """In a graph, and a hundred times."""
    experts, hidden, inter = 16, 1024, 512
    w = moe.prepare_nvfp4(*random_nvfp4(experts, hidden, inter, 1, device))
    x, ids, weights = random_call(tokens, 6, experts, hidden, 2, device)
    first, out = moe.fp4_moe(x, w, ids, weights), torch.empty_like(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        moe.fp4_moe(x, w, ids, weights, out=out)
    for _ in range(100):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, first)
        assert torch.equal(moe.fp4_moe(x, w, ids, weights), first)
