"""Dockerfile and compose file, as far as they go without an engine: read, linted, and the build steps executed."""

import re
import shutil

import pytest
import yaml
from documents import NEEDS_DOCKER, ROOT, blocks
from helpers import environment, run

from sglang_sm120.upstream import releases


def instructions():
    """(name, arguments) of each instruction, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines()]


def test_the_image_is_an_official_one_of_a_proven_release():
    names = [name for name, _ in instructions()]
    assert set(names) <= {"ARG", "FROM", "WORKDIR", "COPY", "ENV", "RUN", "EXPOSE", "CMD"}
    (image,) = [value.partition("=")[2] for name, value in instructions() if name == "ARG"]
    repository, _, tag = image.partition(":")
    assert repository == "lmsysorg/sglang"
    assert releases.is_proven(tag.removeprefix("v"))
    stages = [value.split()[0] for name, value in instructions() if name == "FROM"]
    assert stages == ["${SGLANG_IMAGE}"] * 2


def test_hadolint():
    if shutil.which("hadolint") is None:
        pytest.skip("hadolint is not installed")
    done = run("hadolint", ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout


def test_what_is_copied_exists():
    for name, value in instructions():
        if name == "COPY" and not value.startswith("--from"):
            for pattern in value.split()[:-1]:
                assert pattern == "." or list(ROOT.glob(pattern)), value
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ".git" in ignored
    assert not {"overlay", "patches", "kernels", "scripts"} & set(ignored)


def test_the_build_steps_work(tree, tmp_path, make_environment, offline):
    """Each RUN line, in order, in a clean environment that sees SGLang as the image does."""
    python = make_environment(tmp_path / "image")
    programs, wheels = python.parent, tmp_path / "wheels"
    settings = environment(CUDA_VISIBLE_DEVICES="", **offline)
    settings["PATH"] = f"{programs}:{settings['PATH']}"
    steps = [value for name, value in instructions() if name == "RUN"]
    assert len(steps) == 2
    for step in steps:
        done = run("bash", "-ec", step.replace("/wheels", str(wheels)), env=settings, cwd=tree)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "plugin  sm120 (sglang-sm120)" in done.stdout
    (wheel,) = wheels.iterdir()
    assert wheel.name.startswith("sglang_sm120-")


def test_the_compose_file():
    text = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    service = yaml.safe_load(text)["services"]["sglang"]
    assert (ROOT / re.sub(r"\$\{RECIPE:-(\w+)\}", r"\1", service["command"][0])).is_file()
    assert service["command"][1] == service["volumes"][0].split(":")[-2]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert device["capabilities"] == ["gpu"]
    port = service["ports"][0].split(":")[-1]
    assert f":{port}/health" in service["healthcheck"]["test"][-1]


def test_docker_commands_of_the_documents():
    commands = [c for b in blocks() if b.mark == NEEDS_DOCKER for c in b.commands]
    compose = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    assert commands
    for command in commands:
        settings = re.findall(r"^(?:([A-Z_]+)=\S+ )*", command)[0]
        assert re.search(r"(^| )docker (build|compose up)", command)
        assert not settings or f"${{{settings}:" in compose
