"""What breaks launches beside the MoE layers, found on machines that are made of files."""

import struct
from types import SimpleNamespace

import pytest

from sglang_sm120 import gpu
from sglang_sm120.commands.doctor import command as doctor
from sglang_sm120.commands.doctor import machine
from sglang_sm120.commands.findings import links, toolchain, unified_memory
from sglang_sm120.gpu import Gpu

CURE = "--disable-custom-all-reduce together with NCCL_P2P_DISABLE=1"


def config_space(*capabilities):
    """(number, control) of each extended capability, as a bridge's configuration space has them."""
    space = bytearray(4096)
    at = 0x100
    for place, (number, control) in enumerate(capabilities):
        following = 0 if place == len(capabilities) - 1 else at + 0x40
        struct.pack_into("<IHH", space, at, number | 1 << 16 | following << 20, 0, control)
        at += 0x40
    return bytes(space)


@pytest.fixture
def sys_of(tmp_path):
    """IOMMU type and the bridges' configuration spaces -> /sys of a host with two GPUs, each below one bridge."""

    def build(kind="identity", spaces=(b"", b""), vendor="0x10de", count=2):
        devices = tmp_path / "bus" / "pci" / "devices"
        devices.mkdir(parents=True)
        for number in range(count):
            bridge = tmp_path / "devices" / "pci0000:00" / f"0000:00:0{number + 1}.1"
            card = bridge / f"0000:0{number + 1}:00.0"
            card.mkdir(parents=True)
            (card / "vendor").write_text(f"{vendor}\n")
            (card / "class").write_text("0x030000\n")
            (card / "iommu_group").mkdir()
            (card / "iommu_group" / "type").write_text(f"{kind}\n")
            (bridge / "vendor").write_text("0x1022\n")
            (bridge / "class").write_text("0x060400\n")
            (bridge / "config").write_bytes(spaces[number % len(spaces)])
            for place in (bridge, card):
                (devices / place.name).symlink_to(place)
        return tmp_path

    return build


@pytest.mark.parametrize("kind", ["DMA", "DMA-FQ"])
def test_an_iommu_that_translates(sys_of, kind):
    (found,) = links.found(sys_of(kind))
    assert found.name == "iommu"
    assert f"0000:01:00.0 ({kind}), 0000:02:00.0 ({kind})" in found.says
    assert "iommu=pt" in found.remedy
    assert CURE in found.remedy


def test_what_does_not_translate_is_no_finding(sys_of):
    assert links.found(sys_of("identity")) == []


@pytest.mark.parametrize("other", [{"vendor": "0x1002"}, {"count": 1}])
def test_one_gpu_or_none_reaches_nobody(sys_of, other):
    assert links.found(sys_of("DMA", **other)) == []


def test_a_host_without_pci(tmp_path):
    assert links.found(tmp_path) == []


@pytest.mark.parametrize(
    ("control", "words"),
    [(0x1D, "ReqRedir+CmpltRedir"), (0x04, "ReqRedir"), (0x08, "CmpltRedir"), (0x11, None), (0, None)],
)
def test_bridges_that_redirect(sys_of, control, words):
    """0x1d is the value of the report: SrcValid, ReqRedir, CmpltRedir, UpstreamFwd."""
    space = config_space((0x0001, 0xFFFF), (0x000D, control), (0x0019, 0))
    found = links.found(sys_of(spaces=(space, config_space((0x0001, 0xFFFF)))))
    if words is None:
        assert found == []
        return
    (acs,) = found
    assert f"0000:00:01.1 ({words})" in acs.says
    assert "0000:00:02.1" not in acs.says + acs.remedy
    assert "setpci -s 0000:00:01.1 ECAP_ACS+6.w=0000" in acs.remedy


@pytest.mark.parametrize("space", [b"", bytes(64), bytes(4096), struct.pack("<I", 0x10D0001) * 1024])
def test_a_configuration_that_cannot_be_read_proves_nothing(sys_of, space):
    """Others than root read 64 bytes; the last one is a list that leads to itself."""
    assert links.found(sys_of(spaces=(space,))) == []


@pytest.mark.parametrize(
    ("pairs", "disabled", "value", "found"),
    [
        (True, False, "1", True),
        (True, True, "1", False),
        (False, False, "1", False),
        (True, False, "0", False),
        (True, False, None, False),
    ],
)
def test_peers_that_are_half_disabled(pairs, disabled, value, found):
    given = links.half_disabled(pairs, disabled, {"NCCL_P2P_DISABLE": value} if value else {})
    assert [f.remedy for f in given] == (["add --disable-custom-all-reduce"] if found else [])


@pytest.fixture
def program(tmp_path):
    """What a ptxas prints for --help, and for --version -> its path."""

    def put(architectures, name="ptxas"):
        file = tmp_path / name
        file.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "Cuda compilation tools, release 12.8, V12.8.93" && exit\n'
            f'echo "Allowed values: {architectures}"\n'
        )
        file.chmod(0o755)
        return str(file)

    return put


@pytest.mark.parametrize(
    ("arch", "known", "missing"),
    [
        ("sm121", "'sm_120','sm_120a'", "sm_121a"),
        ("sm121", "'sm_121','sm_121a'", None),
        ("sm120", "'sm_90a','sm_100a'", "sm_120a"),
        ("sm120", "'sm_120a'", None),
    ],
)
def test_an_assembler_that_does_not_know_the_gpu(program, monkeypatch, arch, known, missing):
    path = program(known)
    monkeypatch.setattr(toolchain, "assembler", lambda _: path)
    found = toolchain.ptxas(arch)
    assert len(found) == (missing is not None)
    if missing:
        assert f"({path}, CUDA 12.8) has no {missing}" in found[0].says
        assert "TRITON_PTXAS_BLACKWELL_PATH" in found[0].remedy


def test_the_assembler_is_the_one_that_triton_runs(program):
    import triton

    own = toolchain.assembler({})
    assert own is not None
    assert own.startswith(triton.__path__[0])
    name = "TRITON_PTXAS_BLACKWELL_PATH" if own.endswith("blackwell") else "TRITON_PTXAS_PATH"
    assert toolchain.assembler({name: program("")}) == program("")
    assert toolchain.assembler({name: "/no/such"}) is None
    assert toolchain.ptxas("sm120") == toolchain.ptxas("sm121") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "raise ImportError('Could not load any common_ops library')",
            "ImportError: Could not load any common_ops libr",
        ),
        ("import ctypes; ctypes.CDLL('/no/such.so')", "OSError: /no/such.so"),
        ("raise SystemExit('wrong GPU')", "wrong GPU"),
        ("", None),
    ],
)
def test_a_compiled_package_that_does_not_import(tmp_path, monkeypatch, text, says):
    (tmp_path / "sgl_kernel.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = toolchain.sgl_kernel()
    assert len(found) == (says is not None)
    if says:
        assert says in found[0].says
        assert "pip install --force-reinstall sglang==" in found[0].remedy
        assert "Traceback" not in found[0].line


@pytest.fixture
def spark(tmp_path, monkeypatch):
    """A GB10 by its files; sizes in GiB."""

    def build(total=119, free=115, shm=59, kernel="6.17.0-1032-nvidia", cards=("mlx5_0",), boot=""):
        (tmp_path / "meminfo").write_text(f"MemTotal: {total * 2**20} kB\nMemAvailable: {free * 2**20} kB\n")
        (tmp_path / "cmdline").write_text(f"ro quiet {boot}\n")
        for card in cards:
            (tmp_path / "class" / "infiniband" / card).mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(
            unified_memory.os, "statvfs", lambda _: SimpleNamespace(f_blocks=shm * 2**18, f_frsize=4096)
        )
        return unified_memory.found(tmp_path, tmp_path, tmp_path, kernel)

    return build


@pytest.mark.parametrize(
    ("machine_", "name", "says", "remedy"),
    [
        ({"total": 62, "free": 60, "shm": 31}, "unified-memory", "shows 62 GiB of about 119", "/etc/modprobe.d"),
        ({"free": 86}, "held-memory", "86 of 119 GiB are available", "drop_caches"),
        ({"shm": 64}, "shm", "may take 64 of the 119 GiB", "shm_size: 10gb"),
        ({"kernel": "7.0.0-1019-nvidia"}, "rdma-kernel", "7.0.0-1019-nvidia with RDMA (mlx5_0)", "kho=off"),
    ],
)
def test_a_spark_that_will_not_serve(spark, machine_, name, says, remedy):
    (found,) = spark(**machine_)
    assert found.name == name
    assert says in found.says
    assert remedy in found.remedy


@pytest.mark.parametrize(
    "machine_",
    [
        {},
        {"kernel": "7.0.0-1019-nvidia", "cards": ()},
        {"kernel": "7.0.0-31-generic", "boot": "kho=off"},
        {"kernel": "unknown"},
        {"total": 0, "free": 0},
    ],
)
def test_a_spark_that_is_well(spark, machine_):
    assert spark(**machine_) == []


def test_doctor_shows_each_finding_with_what_to_do(monkeypatch, sys_of):
    card = {"name": "RTX", "arch": "sm120", "memory_gib": 96.0, "pcie_generation": 5, "pcie_width": 16, "nvlinks": 0}
    monkeypatch.setattr(machine, "cards", lambda: {"driver": "580", "cards": [card | {"sms": 188}] * 2})
    monkeypatch.setattr(gpu, "detect", lambda *_: Gpu((12, 0), "RTX", "nvml"))
    monkeypatch.setattr(toolchain, "sgl_kernel", list)
    whole = links.found
    monkeypatch.setattr(links, "found", lambda: whole(sys_of("DMA-FQ")))
    document = doctor.examine()
    (finding,) = document["findings"]
    assert set(finding) == {"name", "says", "remedy", "reported"}
    said = doctor.render(document)
    assert "warning the IOMMU translates for the GPUs" in said
    assert "iommu=pt" in said


def test_other_gpus_are_asked_nothing(monkeypatch):
    monkeypatch.setattr(gpu, "detect", lambda *_: Gpu((9, 0), "H200", "nvml"))
    for module, name in ((toolchain, "ptxas"), (toolchain, "sgl_kernel"), (links, "found"), (unified_memory, "found")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("asked"))
    assert doctor.examine()["findings"] == []
