"""A launch whose `auto` follows a table of `tune`: the runner that SGLang gets, and what `plan` says of it."""

import json

import pytest
from helpers import COMMAND, EAGLE, environment, run

from sglang_sm120.commands.plan import simulate
from sglang_sm120.moe.runner_tables import Layer, Place, path_for
from sglang_sm120.upstream import releases

pytestmark = pytest.mark.sglang

TARGET, DRAFT = (Layer(f, 8, 512, 128, 2, 2) for f in ("nvfp4", "mxfp4"))


def planned(checkpoint, *flags, **variables):
    words = ["plan", "--model", checkpoint, "--arch", "sm120", "--json", "--", "--tp", "2", *EAGLE, *flags]
    done = run(COMMAND, *words, env=environment(**variables))
    return json.loads(done.stdout)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Variables of a machine where Marlin was faster for the target and ours for the draft."""
    monkeypatch.setenv("SGLANG_SM120_HOME", str(tmp_path))

    def rows(**us):
        return [
            {"runner": name, "status": "right", "times": [
                {"tokens": 2**n, "us": value, "low": value, "high": value} for n in range(14)]}
            for name, value in us.items()
        ]  # fmt: skip

    here = Place(simulate.PRODUCTS["sm120"][0], releases.base(releases.installed()))
    layers = [vars(TARGET) | {"runners": rows(sm120_triton=30.0, marlin=20.0)}]
    layers += [vars(DRAFT) | {"runners": rows(sm120_triton=20.0, marlin=30.0)}]
    path_for(here).write_text(json.dumps({"schema": 1, "kind": "runners", **vars(here), "layers": layers}))
    return {"SGLANG_SM120_HOME": str(tmp_path), "SGLANG_SM120_AUTO": "measured"}


def test_sglang_gets_the_runner_that_was_faster_here_and_plan_says_why(checkpoints, measured):
    found = planned(checkpoints["hybrid"], **measured)
    assert (found["target"]["runner"], found["target"]["method"]) == ("marlin", "ModelOptNvFp4FusedMoEMethod")
    assert "measured here: " in found["target"]["reason"]
    assert "; sm120_triton " in found["target"]["reason"]
    assert (found["draft"]["runner"], found["draft"]["method"]) == ("sm120_triton", "Sm120Mxfp4MoEMethod")
    assert "; marlin " in found["draft"]["reason"]


def test_a_flag_wins_and_so_does_fixed(checkpoints, measured):
    found = planned(checkpoints["hybrid"], "--moe-runner-backend", "sm120_triton", **measured)
    assert found["target"]["runner"] == "sm120_triton"
    found = planned(checkpoints["hybrid"], **measured | {"SGLANG_SM120_AUTO": "fixed"})
    assert found["target"]["runner"] == "sm120_triton"
    assert "measured" not in found["target"]["reason"]
