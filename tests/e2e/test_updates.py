"""The phase that updates running servers, against a stand-in server whose answers depend on the checkpoint's name."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.e2e import client, session, updates
from benchmarks.e2e.servers import launches

FAKE = Path(__file__).resolve().parents[1] / "children" / "fake_server.py"


@pytest.fixture
def run(tmp_path):
    """A run with one server that is to be updated, and two checkpoints."""
    launch = replace(launches.MAIN[-1], updated=True)
    made = session.Run(tmp_path, tmp_path / "models", tmp_path / "caches", 60, [sys.executable, str(FAKE)], port=21900)
    for seed in (0, 1):
        directory = made.model(launch.kind, seed)
        directory.mkdir(parents=True)
        (directory / "config.json").write_text('{"quantization_config": {}}')
    server = made.start(launch, 0)
    made.results[launch.name] |= made.outcome(server, server.wait_ready(time.monotonic() + 20))
    yield SimpleNamespace(run=made, launch=launch)
    made.stop()


def test_a_server_is_compared_with_one_started_on_the_weights(run):
    updates.updates(run.run, [run.launch])
    steps = run.run.results[run.launch.name]["updates"]
    assert [(step["step"], step["seed"]) for step in steps] == [("other", 1), ("other again", 1), ("back", 0)]
    assert [updates.holds(step) for step in steps] == [True] * 3
    assert run.run.results[run.launch.name + "-twin"]["outcome"] == "ready"
    assert not run.run.servers[run.launch.name + "-twin"].is_alive()


def test_an_update_that_changes_nothing_is_noticed(run, monkeypatch):
    done = {"success": True, "message": "done", "seconds": 0.0}
    monkeypatch.setattr(client, "update", lambda *_a, **_k: dict(done))
    updates.updates(run.run, [run.launch])
    first, again, back = run.run.results[run.launch.name]["updates"]
    assert not updates.holds(first)
    assert first["same_tokens"] == again["same_tokens"] == 0
    assert updates.holds(back)


def test_what_differs_is_told():
    row = {"ids": [1, 2], "logprobs": [-0.5, -1.0], "spec_accept_length": 1.5}
    near = row | {"logprobs": [-0.5005, -1.0]}
    found = updates.compare([near, row], [row, row]) | {"success": True, "changed": True}
    assert found["largest_logprob_difference"] == pytest.approx(5e-4)
    assert updates.holds(found)
    for other in ({"ids": [1, 3]}, {"logprobs": [-0.5, -1.01]}, {"spec_accept_length": 1.2}):
        assert not updates.holds(updates.compare([row | other], [row]) | {"success": True, "changed": True})
    assert not updates.holds(updates.compare([{"error": "down"}], [row]) | {"success": True, "changed": True})
