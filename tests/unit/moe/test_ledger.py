"""The ledger: records what the loader delivers, names what is missing, and works from many threads."""

from concurrent.futures import ThreadPoolExecutor

from sglang_sm120.moe.ledger import SCALE, SHARDS, WEIGHT, ShardLedger


def deliver(ledger, loader, expert, shard, kind):
    ledger.wrap(loader)("param", "tensor", f"experts.{kind}", shard_id=shard, expert_id=expert)


def test_complete_and_missing():
    calls = []
    ledger = ShardLedger(before=lambda: None)
    assert ledger.is_empty
    everything = [(e, s, k) for e in (0, 1) for s in SHARDS for k in ("w13_weight", "w13_weight_scale_inv")]
    for expert, shard, kind in everything[:-1]:
        deliver(ledger, lambda *a, **k: calls.append((a, k)), expert, shard, kind)
    assert not ledger.is_empty
    assert len(calls) == len(everything) - 1
    assert calls[0] == (("param", "tensor", "experts.w13_weight"), {"shard_id": "w1", "expert_id": 0})
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
