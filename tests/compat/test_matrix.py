"""The part of the matrix that fits into a test run, and the rules its expectations keep.

All of it: `scripts/compat/matrix.py`.
"""

import pytest

from scripts.compat import expected, rows, run
from sglang_sm120.settings import TARGET_MOE

TABLE = expected.load()
_SMOKE = [(release, "sm120") for release in rows.SMOKE_RELEASES] + [("0.5.23", "sm121")]


@pytest.fixture(scope="module")
def smoke(release_tree, side_by_side):
    """(release, architecture) -> cells."""
    for release, _ in _SMOKE:
        release_tree(release)
    calls = [(run.run, release, arch, rows.SMOKE_ROWS) for release, arch in _SMOKE]
    return dict(zip(_SMOKE, side_by_side(calls), strict=True))


@pytest.mark.parametrize(("release", "arch"), _SMOKE)
def test_launches(release, arch, smoke):
    """Real resolution and real layers of one release of each era, stock and with the overlay."""
    cells = smoke[release, arch]
    assert len(cells) >= 12
    assert expected.problems(cells, TABLE) == []


def test_the_expectations_are_complete_and_keep_the_rules():
    """Of expected.json alone: nothing runs here. That launches meet it is what `test_launches` and the matrix show.

    The overlay lets nothing through that breaks, refuses nothing that asked for no runner, and changes no launch on
    other architectures. What ran on stock it refuses under DSpark only: there SGLang ignores the draft's flag, and the
    overlay honours it, hence refuses a runner that cannot run.
    """
    wrong = {}
    for row in rows.ROWS:
        for arch in row.archs:
            for release in row.in_releases:
                sides = [expected.outcome(TABLE, row.id, arch, side, release) for side in ("stock", "ours")]
                if rule := _broken(row, arch, *sides):
                    wrong[row.id, arch, release] = rule, sides
    assert wrong == {}
    assert set(TABLE["rows"]) == {row.id for row in rows.ROWS}


def _broken(row, arch, stock, ours):
    """The rule that an expectation does not keep; None if it keeps all."""
    if stock is None or ours is None:
        return "says nothing"
    if arch in rows.OTHERS:
        return "the overlay changes it" if stock != ours else None
    if ours.startswith("breaks"):
        return "the overlay lets it through"
    refused = not ours.startswith("runs")
    if refused and row.target_runner is None and row.draft_runner is None and TARGET_MOE.name not in row.env:
        return "refused without a runner asked for"
    if refused and stock.startswith("runs") and (row.draft, row.draft_runner) != ("DSPARK", "triton"):
        return "refused although stock runs it"
    return None


@pytest.mark.parametrize(
    ("arch", "stock", "ours", "rule"),
    [
        ("sm120", "runs: a", "runs: b", None),
        ("sm120", None, "runs: b", "says nothing"),
        ("sm120", "breaks: a", "breaks: a", "the overlay lets it through"),
        ("sm120", "breaks: a", "stops: b", "refused without a runner asked for"),
        ("sm100", "gets: a", "gets: b", "the overlay changes it"),
    ],
)
def test_each_rule_can_be_broken(arch, stock, ours, rule):
    assert _broken(rows.Row("mxfp4"), arch, stock, ours) == rule


def test_a_wrong_expectation_is_reported():
    row = rows.ROWS[0]
    cell = run.Cell(
        "0.5.23", "sm120", row, "stock", {"target": None, "draft": None, "errors": ["no: reason"], "patches": []}
    )
    (problem,) = expected.problems([cell], TABLE)
    for part in ("0.5.23", "sm120", "stock", row.id, "stops: no"):
        assert part in problem
