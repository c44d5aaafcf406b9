"""A copy of the checkout, a clean environment, and the programs that stand in for slow ones."""

import json
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import CHILDREN, environment, run

from scripts.checkpoints import tiny
from sglang_sm120.checkpoint import inspection

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from documents import ROOT, sglang_flags  # noqa: E402 - found through the line above

DSPARK = {
    "dspark_block_size": 5,
    "dspark_markov_rank": 256,
    "dspark_noise_token_id": 0,
    "dspark_target_layer_ids": [0, 1],
}


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """The tracked files as they are in the working tree, links as links: commands may write here."""
    tree = tmp_path_factory.mktemp("tree")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_file():
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)
    return tree


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A small hybrid checkpoint that has both an MTP layer and the marks of a DSpark draft.

    Its shared expert can be cut in 8, as far as the documents' launches do.
    """
    shape = replace(tiny.SHAPE, intermediate=8 * 128)
    directory = tiny.write(tmp_path_factory.mktemp("model") / "model", shape)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | DSPARK))
    mark = "mtp.0.main_proj.weight"  # by which DSpark's stages are known
    header = json.dumps({mark: {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    (directory / "mark.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))
    index = json.loads((directory / inspection.INDEX).read_text())
    index["weight_map"][mark] = "mark.safetensors"
    (directory / inspection.INDEX).write_text(json.dumps(index))
    return directory


def clean_environment(directory):
    """A new environment that sees this one's packages, as an image's does; returns its python."""
    assert run(sys.executable, "-m", "venv", "--without-pip", directory).returncode == 0
    python = directory / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    import pip
    import sglang

    homes = {sysconfig.get_path("purelib"), *(str(Path(m.__file__).parent.parent) for m in (pip, sglang))}
    lines = [f"import site; site.addsitedir({home!r})" for home in sorted(homes)]
    (packages / "base.pth").write_text("\n".join(lines) + "\n")
    return python


# Neither an index nor an isolated build: the tests run without a network.
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.fixture(scope="session")
def make_environment():
    return clean_environment


@pytest.fixture(scope="session")
def offline():
    return OFFLINE


class StandIns:
    """Runs shell commands with the stand-ins on PATH and keeps what they noted."""

    def __init__(self, work, model):
        self.programs, self.notes = work / "programs", work / "notes"
        self.pip = clean_environment(work / "clean")
        self.programs.mkdir()
        for name in ("python3", "pip", "sglang-sm120"):
            script = self.programs / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{CHILDREN / "stand_in.py"}" {name} "$@"\n')
            script.chmod(0o755)
        self.environment = environment(
            STAND_IN_NOTES=str(self.notes),
            STAND_IN_PIP=str(self.pip),
            STAND_IN_PYTHON=sys.executable,
            MODEL=str(model),
            **OFFLINE,
        )
        self.environment["PATH"] = f"{self.programs}:{self.environment['PATH']}"
        self.environment.pop("PYTHON", None)

    def run(self, shell, cwd, **more):
        """The command's outcome, and what it noted."""
        self.notes.write_text("")
        done = run("bash", "-c", shell, env=self.environment | more, cwd=cwd)
        return done, [json.loads(line) for line in self.notes.read_text().splitlines()]


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory, model):
    return StandIns(tmp_path_factory.mktemp("stand-ins"), model)


@pytest.fixture(scope="session")
def resolve():
    """Notes of plans and launches -> answers of the real SGLang on simulated GPUs, with one import."""

    def ask(noted, model):
        launches = [
            {
                "model": str(model),
                "flags": sglang_flags(n),
                "env": {k: v for k, v in n["environment"].items() if k != "SGLANG_SM120_HOME"},
            }
            for n in noted
        ]
        distinct = list({json.dumps(launch): launch for launch in launches}.values())
        request = json.dumps({"arch": "sm120", "launches": distinct})
        done = run(sys.executable, CHILDREN / "probe.py", input=request)
        assert done.stdout, done.stderr[-4000:]
        answers = dict(zip(map(json.dumps, distinct), json.loads(done.stdout), strict=True))
        return [answers[json.dumps(launch)] for launch in launches]

    return ask
