"""What the proof asks of a case, asked of the kernels in Triton's interpreter: right ones pass, each fault is named."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang_sm120.commands.selftest.sm120_code import cases, checks, proof
from sglang_sm120.commands.selftest.sm120_code.cases import Case, Layer
from sglang_sm120.kernels.sm120 import fp4_moe

TINY = Layer("tiny", 4, 96, 64, 2)
FORMATS = cases.formats()


def layer_of(case):
    tensors = checks.random_weights(case.layer, case.format, "cpu")
    inputs = checks.random_inputs(case.layer, case.tokens, "cpu")
    (want,) = checks.wanted([case], [inputs], tensors)
    return tensors, inputs, want


def oracle(x, w, ids, weights, **_):
    """In the kernel's place: the reference on weights that were not prepared, in bf16."""
    return fp4_moe.reference.mxfp4_moe(x, *w, ids, weights).bfloat16()


@pytest.mark.parametrize("case", [Case(TINY, 3, "bf16", kind) for kind in FORMATS] + [Case(TINY, 3, "mxfp8")], ids=str)
def test_right_kernels_pass(case):
    w, inputs, want = layer_of(case)
    row, wrong = checks.numbers(case, checks.prepare(case.format, w), inputs, want)
    assert wrong == []
    assert 0 < row["error"] <= row["bound"]


def test_results_of_cases_together_are_those_of_each():
    several = [Case(TINY, 3, "bf16"), Case(TINY, 4, "mxfp8"), Case(TINY, 2, "bf16", unclamped=True), Case(TINY, 5, "bf16")]  # fmt: skip  # noqa: E501
    tensors = checks.random_weights(TINY, "mxfp4", "cpu")
    inputs = [checks.random_inputs(TINY, c.tokens, "cpu") for c in several]
    together = checks.wanted(several, inputs, tensors)
    for case, given, want in zip(several, inputs, together, strict=True):
        (alone,) = checks.wanted([case], [given], tensors)
        assert torch.allclose(want, alone, rtol=1e-12)
    assert not torch.allclose(checks.wanted([Case(TINY, 2, "bf16")], inputs[2:3], tensors)[0], together[2], rtol=1e-4)


class Calls:
    """`fp4_moe` with a fault in its results from the n-th call on."""

    def __init__(self, change, first=0):
        self.change, self.first, self.count = change, first, 0

    def __call__(self, x, *rest, out=None, **_):
        y = oracle(x, *rest)
        if self.count >= self.first:
            self.change(y, x, *rest)
        self.count += 1
        return y if out is None else out.copy_(y)


def one_value(y, *_):
    y[0, 0] += 1


@pytest.mark.parametrize(
    ("change", "first", "words"),
    [
        (lambda y, *_: y.mul_(1.01), 0, ["relative error"]),
        (one_value, 0, ["a value is off"]),
        (lambda y, *_: y[0].fill_(float("nan")), 0, ["relative error", "a value is off"]),
        (lambda y, *_: y[0, :1].view(torch.int16).bitwise_xor_(1), 1, ["other bits"]),
    ],
)
def test_wrong_numbers_are_named(monkeypatch, change, first, words):
    case = Case(TINY, 5, "bf16")
    w, inputs, want = layer_of(case)
    monkeypatch.setattr(fp4_moe, "fp4_moe", Calls(change, first))
    _, wrong = checks.numbers(case, w, inputs, want)
    assert len(wrong) == len(words)
    assert all(w in said for w, said in zip(words, wrong, strict=True))


def spread(y, x, *_):
    if x.isnan().any():
        y[0] += 1


def swallow(y, x, *_):
    y.nan_to_num_()


def count_outside(y, x, w, ids, weights):
    y[(ids == 2**31 - 1).any(1)] += 1


def test_right_tokens_pass(monkeypatch):
    for tokens in (1, 5):
        case = Case(TINY, tokens, "bf16")
        w, inputs, _ = layer_of(case)
        monkeypatch.setattr(fp4_moe, "fp4_moe", Calls(lambda *_: None))
        assert checks.bad_tokens(case, w, inputs) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [(spread, "changes other tokens"), (swallow, "has numbers"), (count_outside, "id of 2147483647 counts")],
)
def test_what_bad_tokens_do_is_named(monkeypatch, change, said):
    case = Case(TINY, 5, "bf16")
    w, inputs, _ = layer_of(case)
    monkeypatch.setattr(fp4_moe, "fp4_moe", Calls(change))
    (wrong,) = checks.bad_tokens(case, w, inputs)
    assert said in wrong


def test_the_last_experts_are_asked(monkeypatch):
    case = Case(TINY, 3, "bf16")
    tensors = checks.random_weights(TINY, "mxfp4", "cpu")
    last = tuple(t[-2:].clone() for t in tensors)
    w = tensors
    monkeypatch.setattr(fp4_moe, "fp4_moe", Calls(lambda *_: None))
    assert checks.beyond_32_bits(case, w, last, "cpu")[1] == []
    first = tuple(t[:2].clone() for t in checks.random_weights(TINY, "mxfp4", "cpu"))
    assert checks.beyond_32_bits(case, w, first, "cpu")[1]


def test_cases_and_errors_are_reported(monkeypatch):
    """Each tile is looked at closely once, on the SMs that it was planned for."""
    work, sizes, replays = proof.Work(), [], []
    for n, tokens in enumerate((1, 5)):
        case = Case(TINY, tokens, "bf16")
        tiles = frozenset(cases.tile_of(s) for s in cases.steps(case, "cpu"))
        work.cases[case] = (188 + n, tiles)
        work.in_use[188 + n] = set(tiles)
    monkeypatch.setattr(checks, "replayed", lambda case, w, n, device: replays.append((case, n)) or ["graph"])
    monkeypatch.setattr(fp4_moe, "fp4_moe", Calls(lambda *_: None))
    monkeypatch.setattr(checks, "prepare", lambda kind, tensors: tensors)
    code = SimpleNamespace(resize=sizes.append)
    rows, errors = proof.run_cases(code, work, 7, "cpu", lambda line: None)
    assert sizes == [188, 189]
    assert [r["closely"] for r in rows] == [True, rows[0]["tiles"] != rows[1]["tiles"]]
    assert replays[0] == (Case(TINY, 1, "bf16"), 7)
    assert errors[0] == "tiny mxfp4 bf16 T=1 on 188 SMs: graph"
    found = proof.tile_rows(work, {}, rows)
    assert not any(t["ok"] for t in found)


def test_offsets_need_more_than_32_bits():
    layer = cases.BEYOND
    experts = layer.experts - proof.LAST
    assert experts * layer.inter * layer.hidden > 2**32
    assert experts * layer.inter // 2 * layer.hidden > 2**31


def test_fewest_cases_use_every_tile():
    found = {Case(TINY, t, "bf16"): frozenset(used) for t, used in ((1, "ab"), (2, "a"), (3, "bc"), (4, "c"))}
    assert [c.tokens for c in cases.fewest(found)] == [1, 3]


def test_plans_of_another_size_are_run_once(monkeypatch):
    work, case = proof.Work(), Case(TINY, 1, "bf16")
    later = Case(TINY, 2, "bf16")  # the same kernels, planned for 48 SMs
    tiles = frozenset(cases.tile_of(s) for s in cases.steps(case, "cpu"))
    work.add({case: tiles}, 188, "cpu", lean=False)
    work.add({later: tiles}, 48, "cpu", lean=False)
    assert list(work.cases) == [case]
    assert work.in_use == {188: set(tiles), 48: set(tiles)}
