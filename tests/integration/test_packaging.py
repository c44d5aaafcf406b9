"""What is built is whole: wheel from the sdist, installed and removed; and a tree without its links is refused."""

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers import run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The tracked files of this checkout, links as links."""
    tree = tmp_path_factory.mktemp("tree")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, tree / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_symlink():
                target.symlink_to(source.readlink())
            else:
                target.write_bytes(source.read_bytes())
    return tree


def build(where, out, kind):
    code = f"import setuptools.build_meta as b; print(b.build_{kind}({str(out)!r}))"
    done = run(sys.executable, "-c", code, cwd=where)
    assert done.returncode == 0, done.stderr[-2000:]
    return next(out.glob("*.whl" if kind == "wheel" else "*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory):
    """A wheel that was built from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    with tarfile.open(build(tree, out, "sdist")) as archive:
        archive.extractall(out / "unpacked", filter="data")
    (unpacked,) = (out / "unpacked").iterdir()
    return build(unpacked, out, "wheel")


def test_the_wheel_has_every_module(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    homes = {
        "overlay/sglang_sm120": "sglang_sm120",
        "patches": "sglang_sm120/patches",
        "kernels": "sglang_sm120/kernels",
    }
    for top, home in homes.items():
        listed = run("git", "ls-files", top, cwd=ROOT).stdout.split()
        wanted = {name.replace(top, home, 1) for name in listed if name.endswith((".py", ".json", "py.typed"))}
        assert wanted
        assert wanted <= packed


def test_a_wheel_holds_nothing_of_an_earlier_build(tree, tmp_path):
    """A module that has been deleted since, in the tree where `pip install .` was run before."""
    where = shutil.copytree(tree, tmp_path / "tree", symlinks=True)
    gone = ["sglang_sm120/gone.py", "sglang_sm120/patches/gone.py"]
    left = [where / "overlay/sglang_sm120/gone.py", where / "patches/gone.py"]
    for module in left:
        module.write_text("")
    first = set(zipfile.ZipFile(build(where, tmp_path, "wheel")).namelist())
    for module in left:
        module.unlink()
    second = set(zipfile.ZipFile(build(where, tmp_path, "wheel")).namelist())
    assert (where / "build/lib/sglang_sm120").is_dir()
    assert first - second == set(gone)
    assert second < first


def test_install_and_uninstall_leave_nothing(wheel, tmp_path):
    venv = tmp_path / "venv"
    assert run(sys.executable, "-m", "venv", "--without-pip", venv).returncode == 0
    python = venv / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    (packages / "pip.pth").write_text(sysconfig.get_path("purelib") + "\n" + pip_home())
    before = {p for p in venv.rglob("*") if "__pycache__" not in p.parts}
    assert run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel).returncode == 0
    found = run(python, "-I", "-c", "import sglang_sm120, sys; print(sglang_sm120.__file__)").stdout
    assert str(packages) in found
    assert run(venv / "bin" / "sglang-sm120", "--version").stdout.strip() == "0.1.0"
    assert run(python, "-m", "pip", "uninstall", "-y", "sglang-sm120").returncode == 0
    assert {p for p in venv.rglob("*") if "__pycache__" not in p.parts} == before


def pip_home():
    import pip

    return str(Path(pip.__file__).parent.parent) + "\n"


def test_a_tree_that_lost_its_links_is_refused(tree):
    link = tree / "overlay" / "sglang_sm120" / "kernels"
    target = link.readlink()
    link.unlink()
    link.write_text(str(target))  # what unpacking a zip archive leaves
    try:
        done = run(sys.executable, "setup.py", "--version", cwd=tree)
    finally:
        link.unlink()
        link.symlink_to(target)
    assert done.returncode != 0
    assert "lost its symbolic links" in done.stderr


def test_importing_twice_under_two_names_does_not_happen():
    code = (
        "import sys, sglang_sm120.cli, sglang_sm120.patches, sglang_sm120.kernels.sm120.fp4_moe;"
        "print([m for m in sys.modules if m == 'patches' or m.startswith(('patches.', 'kernels.sm120'))])"
    )
    assert run(sys.executable, "-c", code, cwd=ROOT).stdout.strip() == "[]"
