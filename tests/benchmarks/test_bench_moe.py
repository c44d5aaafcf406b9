"""The kernel race's workloads, layouts and checks, without a GPU."""

from __future__ import annotations

import importlib
import itertools
import subprocess
from pathlib import Path

import pytest
import torch
from race_stand_ins import receipt_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("routing", ["uniform", "skewed", "speculative"])
@pytest.mark.parametrize("tokens", [1, 4, 10, 64])
def test_a_token_never_gets_an_expert_twice(workload, routing, tokens):
    for seed in range(20):
        _, ids, probabilities = workload.case(tokens, 256, 64, 6, routing, seed)
        assert ids.shape == (tokens, 6)
        assert all(len(set(row)) == 6 for row in ids.tolist())
        assert torch.allclose(probabilities.sum(-1), torch.ones(tokens))


@pytest.mark.parametrize("routing", ["uniform", "skewed", "speculative"])
@pytest.mark.parametrize("tokens", [1, 2, 8])
def test_calls_with_few_routes_share_no_expert_with_the_next_call(workload, routing, tokens):
    seen = [set(workload.case(tokens, 256, 64, 6, routing, seed)[1].flatten().tolist()) for seed in range(5)]
    assert all(a.isdisjoint(b) for a, b in itertools.pairwise(seen))


@pytest.mark.parametrize("experts", [256, 384])
def test_skewed_routing_gives_the_hottest_expert_24_times_the_mean(workload, experts):
    ids = torch.cat([workload.case(4096, experts, 32, 6, "skewed", seed)[1] for seed in range(4)])
    load = torch.bincount(ids.flatten(), minlength=experts).double()
    assert load.max() / load.mean() == pytest.approx(24, rel=0.05)
    assert load.argmax() == 0


def test_speculative_groups_of_two_to_six_share_most_of_their_experts(workload):
    ids = workload.case(4096, 256, 32, 6, "speculative", 0)[1]
    shared = (ids[1:, :, None] == ids[:-1, None, :]).any(-1).double().mean(-1)
    follows = shared >= 3 / 6
    assert 0.5 < follows.double().mean() < 0.85  # three of four neighbours are in one group
    assert shared[follows].mean() > 0.6
    distinct = [len(set(ids[i : i + 6].flatten().tolist())) for i in range(0, 4000, 6)]
    assert sum(distinct) / len(distinct) < 26  # of 36 routes; independent tokens would hit 34


def weights_of(experts, hidden, inter, seed=0):
    g = torch.Generator().manual_seed(seed)
    draw = lambda low, high, *shape: torch.randint(low, high, shape, dtype=torch.uint8, generator=g)  # noqa: E731
    return (
        draw(0, 256, experts, 2 * inter, hidden // 2),
        draw(119, 123, experts, 2 * inter, hidden // 32),
        draw(0, 256, experts, hidden, inter // 2),
        draw(119, 123, experts, hidden, inter // 32),
    )


@pytest.mark.parametrize("inter", [32, 96, 128])
def test_padding_the_intermediate_size_does_not_change_the_layer(workload, inter):
    common = importlib.import_module("contestants.common")
    moe = importlib.import_module("bench_moe").moe
    weights = weights_of(4, 64, inter)
    padded = common.pad_intermediate(weights, 128)
    assert padded[0].shape == (4, 256, 32)
    assert padded[3].shape == (4, 64, 4)
    x, ids, p = workload.case(5, 4, 64, 2, "speculative", 0)
    want, got = (moe.reference.mxfp4_moe(x, *w, ids, p, swiglu_limit=10.0) for w in (weights, padded))
    assert torch.allclose(want, got, rtol=1e-12, atol=1e-12)
    assert (padded is weights) == (inter == 128)


def test_only_checked_outputs_get_a_time_and_the_others_say_why(bench, monkeypatch, tmp_path):
    options = [
        "--shapes",
        "tiny",
        "--tokens",
        "1,32",
        "--routings",
        "uniform",
        "--contestants",
        "good,wrong,absent,small,late",
    ]
    receipt = receipt_of(bench, monkeypatch, tmp_path, *options)
    failed = receipt["failed"]["tiny"]
    assert "relative error 2.0e-02" in failed["wrong"]
    assert "no_such_kernel_library" in failed["absent"]
    one, many = receipt["rows"]
    assert set(one["us"]) == {"good", "small", "late"}
    assert set(many["us"]) == {"good"}
    assert "at most 16 tokens" in many["failed"]["small"]
    assert "not timed" in many["failed"]["late"]
    assert receipt["errors"]["tiny"]["good"] < 1e-6
    assert many["errors"]["good"] < 1e-6
    assert receipt["versions"]["no-such-package"] == "not installed"
    assert receipt["versions"]["torch"] == importlib.import_module("importlib.metadata").version("torch")
    assert len(one["raw"]["good"]) == 2


def test_a_receipt_names_the_checkouts_commit_wherever_it_is_made(bench, monkeypatch, tmp_path):
    def head():
        command = ["git", "-C", ROOT, "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    before = head()
    monkeypatch.chdir(tmp_path)
    options = ["--shapes", "tiny", "--tokens", "1", "--routings", "uniform", "--contestants", "good"]
    assert receipt_of(bench, monkeypatch, tmp_path, *options)["commit"] in {before, head()}
    options += ["--commit", "0123abcd"]
    assert receipt_of(bench, monkeypatch, tmp_path, *options)["commit"] == "0123abcd"
