"""A process for each rank, joined by gloo: each cuts its share out of the checkpoint, and the shares add up to all.

The whole is the float64 oracle on the unsharded experts, read from the files directly.
"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import CHILDREN, ROOT, environment, run

from scripts.checkpoints import tiny
from scripts.layers import draft_layer
from sglang_sm120.commands.plan import simulate
from sglang_sm120.moe.runner_tables import Layer, Place
from sglang_sm120.upstream import releases

pytestmark = pytest.mark.sglang

EXPERTS, WIDTH, HIDDEN = 8, 128, 256  # small, because Triton's interpreter runs the kernels once for each rank
# Experts 0 to 7 are on EP2 ranks 0 | 1 and on EP4 ranks 0 | 1 | 2 | 3, two each. In the first batch are tokens of one
# rank alone, of both ends, and none for rank 2 of EP4; the second has none for rank 1 of EP2, 2 and 3 of EP4.
BATCHES = [[[0, 1], [6, 7], [0, 7], [3, 6], [1, 3]], [[0, 1], [1, 2], [3, 0]]]
DRAFTS = {"TP2": (2, 1), "TP4": (4, 1), "EP2": (2, 2), "EP4": (4, 4), "TP4 EP2": (4, 2)}
TARGETS = {"TP2 target": (2, 1), "EP2 target": (2, 2), "TP4 EP2 target": (4, 2)}
RANKS = DRAFTS | TARGETS
IDLE = {"EP2": [(1, 1)], "EP4": [(0, 2), (1, 2), (1, 3)], "TP4 EP2": [(1, 2), (1, 3)]}  # batch, rank without a token
IDLE |= {name: IDLE[name.removesuffix(" target")] for name in ("EP2 target", "TP4 EP2 target")}
METHODS = {"draft": "Sm120Mxfp4MoEMethod", "target": "Sm120Nvfp4MoEMethod"}
# A rounding to bf16 costs at most half of its last place, 2^-8 of the value, so 2^-8/sqrt(3) in the mean. They are
# independent: the intermediate's, the one of each share, and one for each addition of a share to the sum.
ROUNDING = 2**-8 / 3**0.5
LEFT = re.compile(r"gloo.*Connection (closed|reset) by peer")


def role_of(name):
    return "target" if name in TARGETS else "draft"


def runs(named, **different):
    of = {name: {"name": name, "tp": RANKS[name][0], "ep": RANKS[name][1], "role": role_of(name)} for name in named}
    return [about | different for about in of.values()]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    shape = replace(tiny.SHAPE, experts=EXPERTS, hidden=HIDDEN, intermediate=WIDTH)
    return tiny.write(tmp_path_factory.mktemp("checkpoint"), shape)


def marlin_is_faster_at(home):
    """Write a host's table of runners for the target's layer at TP2."""
    here = Place(simulate.PRODUCTS["sm120"][0], releases.base(releases.installed()))
    layer = Layer("nvfp4", EXPERTS, HIDDEN, WIDTH // 2, tiny.SHAPE.top_k, 2)
    rows = []
    for name, us in {"sm120_triton": 30.0, "marlin": 20.0}.items():
        times = [{"tokens": 2**n, "us": us, "low": us, "high": us} for n in range(14)]
        rows.append({"runner": name, "status": "right", "times": times})
    document = {"schema": 1, "kind": "runners", **vars(here), "layers": [vars(layer) | {"runners": rows}]}
    home.mkdir()
    (home / here.file_name).write_text(json.dumps(document))


@pytest.fixture(scope="module")
def answers(checkpoint):
    """Run -> what its ranks said; none of their processes is left."""
    dies = runs(["TP2"], dies=1)[0] | {"name": "dies"}
    off = runs(["TP2"], env={"1": {"SGLANG_SM120": "0"}})[0] | {"name": "off"}
    other = runs(["TP4"], env={"2": {"SGLANG_SM120_ACTIVATION": "mxfp8"}})[0] | {"name": "other"}
    table = {"SGLANG_SM120_HOME": str(checkpoint.parent / "home"), "SGLANG_SM120_AUTO": "measured"}
    marlin_is_faster_at(checkpoint.parent / "home")
    tables = runs(["TP2 target"], env={"1": table})[0] | {"name": "tables"}
    asked = [*runs(RANKS), dies, off, other, tables]
    request = {"model": str(checkpoint), "batches": BATCHES, "runs": asked, "limit": 100}
    env = environment(PYTHONPATH=str(ROOT))
    done = run(sys.executable, CHILDREN / "rank_worker.py", env=env, input=json.dumps(request), timeout=700)
    assert done.stdout, done.stderr[-4000:]
    answers = json.loads(done.stdout)
    pids = [rank["pid"] for ranks in answers.values() for rank in ranks]
    assert [pid for pid in pids if Path("/proc", str(pid)).exists()] == []
    return answers


def oracle(checkpoint, role, batch, tp=1, ep=1, rank=0):
    """What the experts of a rank add up to, float64 [T, H]; those of all by default."""
    import torch
    from rank_worker import inputs

    from sglang_sm120.kernels.sm120.fp4_moe import reference

    weights, first = draft_layer.shard(checkpoint, tp, ep, rank, role)
    x, ids, probabilities = inputs(BATCHES[batch], HIDDEN, batch)
    here = (ids >= first) & (ids < first + len(weights[0]))
    local = torch.where(here, ids - first, -1)
    layer = reference.mxfp4_moe if role == "draft" else reference.nvfp4_moe
    return layer(x, *weights, local, probabilities, routed_scaling_factor=1.5)


def distance(found, wanted):
    """L2 norm of the difference."""
    import torch

    return float((torch.tensor(found, dtype=torch.float64) - wanted).norm())


@pytest.mark.parametrize("name", RANKS)
def test_each_rank_holds_its_share(answers, name):
    tp, ep = RANKS[name]
    for rank in answers[name]:
        assert rank["status"] == 0, rank.get("error")
        assert rank["method"] == METHODS[role_of(name)]
        assert rank["shapes"]["w13_weight"] == [EXPERTS // ep, 2 * WIDTH * ep // tp, HIDDEN // 2]
        assert rank["shapes"]["w2_weight"] == [EXPERTS // ep, HIDDEN, WIDTH * ep // tp // 2]


@pytest.mark.parametrize("name", RANKS)
def test_the_sum_over_ranks_is_the_unsharded_layer(checkpoint, answers, name):
    ranks = answers[name]
    for batch in range(len(BATCHES)):
        whole = oracle(checkpoint, role_of(name), batch)
        roundings = 2 + len(ranks) - 1
        for rank in ranks:
            assert distance(rank["sums"][batch], whole) <= ROUNDING * roundings**0.5 * float(whole.norm())
            assert rank["sums"][batch] == ranks[0]["sums"][batch]


@pytest.mark.parametrize("name", RANKS)
def test_each_rank_computes_its_own_experts_and_columns(checkpoint, answers, name):
    tp, ep = RANKS[name]
    for batch in range(len(BATCHES)):
        for number, rank in enumerate(answers[name]):
            share = oracle(checkpoint, role_of(name), batch, tp, ep, number)
            assert ((batch, number) in IDLE.get(name, [])) == (not share.any())
            assert distance(rank["shares"][batch], share) <= ROUNDING * 2**0.5 * float(share.norm())


def test_a_rank_that_dies_ends_the_others(answers):
    survivor, dead = answers["dies"]
    assert dead["status"] == 9
    assert survivor["status"] == 1
    assert LEFT.search(survivor["error"])


def test_a_rank_without_the_overlay_is_named_by_the_others(answers):
    """It cannot say what it runs; itself it runs into the fault of stock."""
    ours, stock = answers["off"]
    assert stock["method"] == "Mxfp4FlashinferTrtllmMoEMethod"
    assert stock["status"] == 1
    assert not LEFT.search(stock["error"])
    assert ours["status"] == 1
    assert ours["error"].startswith("SystemExit: sglang-sm120: rank 1 did not say within 12 s which overlay it runs")
    assert "method" not in ours  # before layers were made


def test_ranks_with_other_settings_end_before_they_make_layers(answers):
    ranks = answers["other"]
    assert [rank["status"] for rank in ranks] == [1] * 4
    assert not any("method" in rank for rank in ranks)
    said = "SystemExit: sglang-sm120: SGLANG_SM120_ACTIVATION is {} on rank {} and {} on rank {}; make their hosts the"
    assert ranks[0]["error"].startswith(said.format("bf16", 0, "mxfp8", 2))
    assert ranks[2]["error"].startswith(said.format("mxfp8", 2, "bf16", 0))


def test_ranks_that_follow_other_tables_of_runners_end_before_they_make_layers(answers):
    """Each host resolves the flags by its own table; layers of two kernels would be summed."""
    ranks = answers["tables"]
    assert [rank["status"] for rank in ranks] == [1, 1], ranks
    assert not any("method" in rank for rank in ranks)
    assert "the target's MoE runner is sm120_triton on rank 0 and marlin on rank 1; " in ranks[0]["error"]
    assert "SGLANG_SM120_AUTO=fixed" in ranks[1]["error"]
