"""The set-up scripts: what they say when something is missing, and that they can be interrupted and shared."""

import os
import shutil
import stat
from pathlib import Path

import pytest
from helpers import environment, run

ROOT = Path(__file__).resolve().parents[2]
MARKER = "complete"


@pytest.fixture
def tree(tmp_path):
    """A checkout whose requirement files ask for nothing but what building needs."""
    tree = tmp_path / "checkout"
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    for name in ("scripts", "overlay", "patches", "kernels"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "scripts" / "env" / "requirements.txt").write_text("# nothing\n")
    (tree / "scripts" / "env" / "requirements-test.txt").write_text("setuptools>=77\n")
    return tree


def python(tree, home, code="import sglang_sm120 as s; print(s.__file__)", **env):
    return run(tree / "scripts" / "python", "-c", code, env=environment(SGLANG_SM120_HOME=str(home), **env))


def layers(home, kind):
    return sorted(p for p in home.glob(f"{kind}-*") if p.is_dir())


def fake_command(directory, name, text):
    directory.mkdir(exist_ok=True)
    (directory / name).write_text("#!/bin/sh\n" + text)
    (directory / name).chmod(stat.S_IRWXU)
    return {"PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"}


def test_a_half_built_environment_is_rebuilt_and_a_second_checkout_shares_it(tree, tmp_path):
    home = tmp_path / "home"
    first = python(tree, home)
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip() == str(tree / "overlay" / "sglang_sm120" / "__init__.py")
    assert "Installing SGLang and its stack" in first.stderr
    (base,) = layers(home, "env")

    again = python(tree, home)
    assert again.returncode == 0
    assert "Installing" not in again.stderr

    (base / MARKER).unlink()  # as an interrupted installation leaves it
    (base / "bin" / "python").unlink()
    (layers(home, "checkout")[0] / MARKER).unlink()
    rebuilt = python(tree, home)
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert (base / MARKER).exists()

    second = shutil.copytree(tree, tmp_path / "second", symlinks=True)
    shared = python(second, home)
    assert shared.stdout.strip() == str(second / "overlay" / "sglang_sm120" / "__init__.py")
    assert "Installing SGLang" not in shared.stderr
    assert layers(home, "env") == [base]
    assert len(layers(home, "checkout")) == 2

    (tree / "scripts" / "env" / "requirements.txt").write_text("# changed\n")
    assert python(tree, home).returncode == 0
    assert len(layers(home, "env")) == 2


def test_without_a_package_index(tree, tmp_path):
    (tree / "scripts" / "env" / "requirements.txt").write_text("no-such-package-of-ours==1\n")
    done = python(tree, tmp_path / "home", PIP_NO_INDEX="1", PIP_RETRIES="0")
    assert done.returncode == 1
    assert "pip could not get the packages" in done.stderr
    assert not list((tmp_path / "home").glob(f"env-*/{MARKER}"))


def test_without_space(tree, tmp_path):
    line = "echo 'Filesystem 1024-blocks Used Available Capacity Mounted on'; echo 'disk 9 9 2097152 99% /'"
    done = python(tree, tmp_path / "home", **fake_command(tmp_path / "bin", "df", line))
    assert done.returncode == 1
    assert "has 2 GB free; the environment needs 15 GB" in done.stderr
    assert "SGLANG_SM120_HOME" in done.stderr


def test_without_a_new_enough_python(tree, tmp_path):
    fakes = {}
    for name in ("python3.13", "python3.12", "python3.11", "python3"):
        fakes = fake_command(tmp_path / "bin", name, "exit 1\n")
    done = python(tree, tmp_path / "home", **fakes)
    assert done.returncode == 1
    assert "no Python 3.11 or newer" in done.stderr


def test_a_home_that_cannot_be_written(tree, tmp_path):
    (tmp_path / "file").write_text("")
    done = python(tree, tmp_path / "file" / "home")
    assert done.returncode == 1
    assert "cannot write to" in done.stderr
