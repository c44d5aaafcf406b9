"""What doctor reads of a machine, on simulated NVML, and what it advises."""

import sys
from types import SimpleNamespace

import pytest

from sglang_sm120.commands.doctor import machine

DESKTOP = {"name": "RTX", "arch": "sm120", "memory_gib": 96.0, "pcie_width": 16, "nvlinks": 0}


class NVMLError(Exception):
    pass


def refuse(*_args):
    raise NVMLError


@pytest.fixture
def nvml(monkeypatch):
    fake = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_NVLINK_MAX_LINKS=18,
        NVML_FEATURE_ENABLED=1,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetUUID=lambda h: f"GPU-{h}",
        nvmlDeviceGetName=lambda h: b"NVIDIA GB10" if h else "NVIDIA RTX PRO 6000",
        nvmlDeviceGetCudaComputeCapability=lambda h: (12, h),
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetMemoryInfo=lambda h: refuse() if h else SimpleNamespace(total=96 * 2**30),
        nvmlDeviceGetMaxPcieLinkGeneration=lambda h: refuse() if h else 5,
        nvmlDeviceGetMaxPcieLinkWidth=lambda h: refuse() if h else 16,
        nvmlDeviceGetNumGpuCores=lambda h: refuse() if h else 188 * 128,
        nvmlDeviceGetPowerManagementLimit=lambda h: 600_000,
        nvmlDeviceGetNvLinkState=refuse,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_cards(nvml):
    found = machine.cards()
    assert found["driver"] == "580.1"
    first, second = found["cards"]
    assert first == {"name": "NVIDIA RTX PRO 6000", "arch": "sm120", "memory_gib": 96.0, "pcie_generation": 5} | {
        "pcie_width": 16, "sms": 188, "power_limit_w": 600, "nvlinks": 0,
    }  # fmt: skip
    assert (second["arch"], second["memory_gib"], second["pcie_width"]) == ("sm121", None, None)
    here = machine.identity(found)
    assert (here.gpu, here.sms) == ("NVIDIA RTX PRO 6000", 188)
    assert machine.identity({"cards": [second]}) is None


def test_without_nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert machine.cards() is None
    assert machine.hints(None) == []


def test_hints():
    assert machine.hints({"cards": [DESKTOP]}) == []
    (pcie,) = machine.hints({"cards": [DESKTOP, DESKTOP]})
    assert "2 GPUs without NVLink" in pcie
    assert pcie.endswith("hangs: --disable-custom-all-reduce together with NCCL_P2P_DISABLE=1")
    assert "hangs" not in machine.hints({"cards": [DESKTOP] * 4})[0]
    assert machine.hints({"cards": [DESKTOP | {"nvlinks": 4}] * 2}) == []
    assert "less than 16 lanes" in machine.hints({"cards": [DESKTOP, DESKTOP | {"pcie_width": 8}]})[1]
    assert "SGLANG_ENABLE_JIT_DEEPGEMM=0" in machine.hints({"cards": [DESKTOP | {"arch": "sm121"}]})[0]
