"""Fixtures of the compatibility tests: releases from the cache."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts.compat import cache

CHILDREN = Path(__file__).resolve().parents[1] / "children"


@pytest.fixture(scope="session")
def release_tree():
    """release -> its unpacked tree; the test is skipped if it is neither in the cache nor to be had."""

    def tree(release: str) -> Path:
        try:
            cache.path_of(release)
            return cache.tree(release)
        except cache.Unavailable as error:
            pytest.skip(
                f"SGLang {release} IS NOT TESTED: it is not in {cache.root()} and there is no network ({error})"
            )

    return tree


@pytest.fixture(scope="session")
def side_by_side():
    """calls -> their results, two processes at a time: (function, *arguments) each, in order."""

    def run(calls):
        with ThreadPoolExecutor(2) as pool:
            return [future.result() for future in [pool.submit(*call) for call in calls]]

    return run


@pytest.fixture(scope="session")
def ask(release_tree):
    """Run a script of `tests/children` with a release on its path; returns its JSON answer."""

    def ask(script: str, *arguments: str, stdin: str, release: str, at: Path | None = None, **env: str):
        release_tree(release)
        done = subprocess.run(
            [sys.executable, str(CHILDREN / script), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=cache.environment(release, at) | env,
            check=False,
        )
        assert done.stdout, f"status {done.returncode}:\n{done.stderr[-3000:]}"
        return json.loads(done.stdout)

    return ask
