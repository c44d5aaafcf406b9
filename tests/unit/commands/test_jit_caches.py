"""What killed compiles leave in caches: what blocks the next compile is told apart from what is only there."""

import fcntl
import os
import time

import pytest

from sglang_sm120.commands.doctor import jit_caches

OLD = time.time() - 2.5 * jit_caches.LOCK_AGE_S


@pytest.fixture
def home(monkeypatch, tmp_path):
    """An empty home; no cache is moved elsewhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("TORCH_EXTENSIONS_DIR", "FLASHINFER_WORKSPACE_BASE", "TVM_FFI_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    return tmp_path


def made(home, name, old=True):
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    if old:
        os.utime(path, (OLD, OLD))
    return path


def test_an_empty_home(home):
    assert jit_caches.leftovers() == []


def test_a_lock_of_torch_is_held_by_existing(home):
    made(home, ".cache/torch_extensions/py312_cu130/young/lock", old=False)
    made(home, ".cache/torch_extensions/py312_cu130/marlin/lock")
    (found,) = jit_caches.leftovers()
    assert found.blocks
    assert found.path == "~/.cache/torch_extensions/py312_cu130/marlin/lock"
    assert found.says == f"{found.path} is 2 h old: a killed compile left it, and the next one waits for it"
    assert found.remedy.endswith(f"rm {found.path}")


def test_a_free_flock_is_nothing_and_a_held_one_names_its_holder(home, monkeypatch):
    path = made(home, ".cache/flashinfer/0.7.2/120a/cached_ops/tmp/fused_moe.lock")
    monkeypatch.setattr(jit_caches, "version", lambda name: "0.7.2")
    monkeypatch.setattr(jit_caches, "LOCK_AGE_S", -1)  # this process is young
    assert [f.path for f in jit_caches.leftovers() if f.blocks] == []
    with path.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (found,) = (f for f in jit_caches.leftovers() if f.blocks)
    assert f"is held by process {os.getpid()}" in found.says
    assert found.path.startswith("~/.cache/flashinfer")


def test_a_lock_of_another_file_system_with_the_same_inode_is_not_this_one(home, monkeypatch, tmp_path):
    """Or doctor would have an innocent process killed."""
    path = made(home, ".cache/tvm-ffi/module.lock")
    status = path.stat()
    fake = tmp_path / "proc"
    (fake / "4242").mkdir(parents=True)
    (fake / "4242" / "stat").write_text("4242 (postgres) S " + "0 " * 18 + "0 0\n")
    (fake / "uptime").write_text("90000.0 0\n")
    monkeypatch.setattr(jit_caches, "PROC", fake)

    def held(major):
        where = f"{major:02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        (fake / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 4242 {where} 0 EOF\n")
        return [f.remedy for f in jit_caches.leftovers()]

    assert held(os.major(status.st_dev)) == ["if it hangs, end it: kill 4242"]
    assert held(os.major(status.st_dev) + 1) == []


def test_links_that_lead_nowhere_hide_nothing(home, monkeypatch):
    """Of locks that are held, too: the first here is dangling, the second is held."""
    monkeypatch.setattr(jit_caches, "LOCK_AGE_S", -1)
    path = made(home, ".cache/flashinfer/z.lock")
    path.with_name("a.lock").symlink_to("nowhere")
    made(home, ".cache/torch_extensions/z/lock")
    (home / ".cache/torch_extensions/a").mkdir()
    (home / ".cache/torch_extensions/a/lock").symlink_to("nowhere")
    with path.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = [f.path.rpartition("/")[2] for f in jit_caches.leftovers() if f.blocks]
    assert found == ["lock", "z.lock"]


def test_unfinished_outputs_of_triton_block_nobody(home, monkeypatch):
    for pid in (2**22 + 1, os.getpid()):  # beyond any process, and this one
        path = home / ".triton" / "cache" / "KEY" / f"tmp.pid_{pid}_abc"
        path.mkdir(parents=True)
        os.utime(path, (OLD, OLD))
    (found,) = jit_caches.leftovers()
    assert not found.blocks
    assert "outputs of 1 killed compiles, the oldest 2 h old" in found.says


def test_a_cache_of_another_flashinfer(home, monkeypatch):
    monkeypatch.setattr(jit_caches, "version", lambda name: "0.7.2")
    for name in ("0.6.12", "0.7.2", "cubins"):
        path = home / ".cache" / "flashinfer" / name
        path.mkdir(parents=True)
        os.utime(path, (OLD, OLD))
    (found,) = jit_caches.leftovers()
    assert not found.blocks
    assert "~/.cache/flashinfer/0.6.12 was compiled by another FlashInfer (0.7.2 is installed)" in found.says


def test_caches_that_variables_move(home, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "elsewhere"))
    made(tmp_path, "elsewhere/marlin/lock")
    (found,) = jit_caches.leftovers()
    assert found.path == "~/elsewhere/marlin/lock"


def test_without_a_home(monkeypatch, home):
    def none():
        raise RuntimeError("no home")

    monkeypatch.setattr("pathlib.Path.home", none)
    assert jit_caches.leftovers() == []


@pytest.mark.parametrize(("seconds", "text"), [(3700, "61 min"), (7300, "2 h"), (3 * 86400, "3 days")])
def test_ages(seconds, text):
    assert jit_caches.age(seconds) == text
