"""The part of the matrix that fits into a test run, the rules its expectations keep, and the document made of them.

All of it: `scripts/compat/matrix.py`.
"""

import pytest

from scripts.compat import document, expected, rows, run
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


def _said(side, arch):
    for row in rows.ROWS:
        for value in TABLE["rows"][row.id].get(arch, {}).get(side, {}).values():
            yield row, value


def test_every_row_says_what_must_come_of_it():
    for row in rows.ROWS:
        for arch in row.archs:
            for side in run.SIDES:
                missing = [r for r in row.in_releases if expected.outcome(TABLE, row.id, arch, side, r) is None]
                assert not missing, (row.id, arch, side)
    assert set(TABLE["rows"]) == {row.id for row in rows.ROWS}


def test_the_overlay_lets_nothing_through_that_breaks():
    assert [(row.id, said) for row, said in _said("ours", "sm12x") if said.startswith("breaks")] == []


def test_the_overlay_refuses_only_what_was_asked_for():
    """A launch without a runner flag of its own runs, on every release."""
    for row, said in _said("ours", "sm12x"):
        if row.target_runner is None and row.draft_runner is None and TARGET_MOE.name not in row.env:
            assert said.startswith("runs"), row.id


def test_what_ran_on_stock_is_refused_only_under_dspark():
    """SGLang ignores the draft's flag under DSpark; the overlay honours it, hence refuses a runner that cannot run."""
    for row in rows.ROWS:
        for release in row.in_releases:
            before, after = (expected.outcome(TABLE, row.id, "sm120", side, release) for side in ("stock", "ours"))
            if before.startswith("runs") and not after.startswith("runs"):
                assert (row.draft, row.draft_runner) == ("DSPARK", "triton"), (row.id, release)


@pytest.mark.parametrize("arch", rows.OTHERS)
def test_other_architectures_get_what_stock_gives(arch):
    asked = [TABLE["rows"][row.id][arch] for row in rows.ROWS if arch in row.archs]
    assert asked
    assert all(place["stock"] == place["ours"] for place in asked)


def test_a_wrong_expectation_is_reported():
    row = rows.ROWS[0]
    cell = run.Cell(
        "0.5.23", "sm120", row, "stock", {"target": None, "draft": None, "errors": ["no: reason"], "patches": []}
    )
    (problem,) = expected.problems([cell], TABLE)
    for part in ("0.5.23", "sm120", "stock", row.id, "stops: no"):
        assert part in problem


def test_the_document_is_current():
    assert document.check(TABLE) == 0
