"""The ledger: records what the loader delivers, names what is missing, and works from many threads."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from sglang_sm120.moe.ledger import SCALE, SHARDS, WEIGHT, ShardLedger, kind_of

PARAM, TENSOR = SimpleNamespace(dtype="a type"), SimpleNamespace(dtype="a type")


def deliver(ledger, loader, expert, shard, kind):
    ledger.wrap(loader, kind)(PARAM, TENSOR, f"experts.{kind}", shard_id=shard, expert_id=expert)


def test_complete_and_missing():
    calls = []
    ledger = ShardLedger(before=lambda: None)
    assert ledger.is_empty
    everything = [(e, s, k) for e in (0, 1) for s in SHARDS for k in ("w13_weight", "w13_weight_scale_inv")]
    for expert, shard, kind in everything[:-1]:
        deliver(ledger, lambda *a, **k: calls.append((a, k)), expert, shard, kind)
    assert not ledger.is_empty
    assert len(calls) == len(everything) - 1
    assert calls[0] == ((PARAM, TENSOR, "experts.w13_weight"), {"shard_id": "w1", "expert_id": 0})
    assert ledger.missing([0, 1]) == [f"experts.1.w3.{SCALE}"]
    assert ledger.missing([0]) == []
    assert f"experts.2.w1.{WEIGHT}" in ledger.missing([2])


def test_the_layer_is_told_before_each_write():
    order = []
    ledger = ShardLedger(before=lambda: order.append("before"))
    deliver(ledger, lambda *a, **k: order.append("write"), 0, "w1", "w13_weight")
    assert order == ["before", "write"]


def test_threads_lose_nothing():
    ledger = ShardLedger(before=lambda: None)
    jobs = [(e, s, k) for e in range(64) for s in SHARDS for k in ("weight", "weight_scale_inv")]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda j: deliver(ledger, lambda *a, **k: None, *j), jobs))
    assert ledger.missing(range(64)) == []


@pytest.mark.parametrize(
    ("parameter", "kind"),
    [
        ("w13_weight", "weight"),
        ("w13_weight_scale_inv", "weight_scale_inv"),
        ("w2_weight_scale", "weight_scale"),
        ("w2_weight_scale_2", "weight_scale_2"),
        ("w13_input_scale", "input_scale"),
    ],
)
def test_kinds_are_told_apart_by_the_end_of_the_name(parameter, kind):
    assert kind_of(parameter) == kind


def test_a_name_of_no_kind():
    with pytest.raises(ValueError, match="parameter is 'w13_bias'; expected a name that ends with one of weight"):
        kind_of("w13_bias")


def test_kinds_that_a_format_needs_are_missed():
    ledger = ShardLedger(before=lambda: None, kinds=("weight", "weight_scale", "weight_scale_2"))
    for shard in SHARDS:
        for name in ("weight", "weight_scale"):
            deliver(ledger, lambda *a, **k: None, 0, shard, name)
    assert ledger.missing([0]) == [f"experts.0.{shard}.weight_scale_2" for shard in SHARDS]


def test_a_write_that_fails_is_no_delivery():
    ledger = ShardLedger(before=lambda: None)

    def fails(*_a, **_k):
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        deliver(ledger, fails, 0, "w1", "w13_weight")
    assert ledger.is_empty


def test_forgotten_deliveries_are_missing_again():
    ledger = ShardLedger(before=lambda: None)
    deliver(ledger, lambda *a, **k: None, 0, "w1", "w13_weight")
    ledger.forget()
    assert f"experts.0.w1.{WEIGHT}" in ledger.missing([0])
