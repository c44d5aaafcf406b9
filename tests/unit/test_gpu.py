"""Which GPU decides, under CUDA_VISIBLE_DEVICES, mixed machines, and without NVML or CUDA."""

import sys
from types import SimpleNamespace

import pytest

from sglang_sm120 import gpu

UUIDS = ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-bbbc-3"]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("1,9,0", [1]),  # CUDA stops at the first entry that it cannot use
        ("GPU-aaaa", [0]),
        ("GPU-bbb", []),  # ambiguous
        ("GPU-bbbc-3,1", [2, 1]),
        ("MIG-GPU-aaaa-1/3/0", [0]),
        ("NoDevFiles", []),
    ],
)
def test_visible(setting, expected):
    assert gpu.visible(3, UUIDS, setting) == expected


def fake_nvml(monkeypatch, capabilities):
    class NVMLError(Exception):
        pass

    fake = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(capabilities),
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetUUID=lambda h: UUIDS[h].encode(),
        nvmlDeviceGetName=lambda h: f"card {h}",
        nvmlDeviceGetCudaComputeCapability=lambda h: capabilities[h],
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_nvml_answers_without_torch(monkeypatch):
    fake_nvml(monkeypatch, [(12, 1)])
    found = gpu.detect()
    assert (found.arch, found.name, found.source, found.mixed) == ("sm121", "card 0", "nvml", False)
    assert found.is_sm12x
    assert "torch" not in sys.modules


def test_the_first_visible_gpu_decides_and_a_mix_is_noticed(monkeypatch):
    fake_nvml(monkeypatch, [(8, 9), (12, 0), (12, 0)])
    assert gpu.detect() == gpu.Gpu((8, 9), "card 0", "nvml", mixed=True, mixed_with_sm12x=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    assert gpu.detect() == gpu.Gpu((12, 0), "card 1", "nvml")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu.detect() is None


def test_a_lost_gpu_is_passed_over(monkeypatch):
    fake = fake_nvml(monkeypatch, [(12, 0), (12, 0)])

    def lose_first(handle):
        if handle == 0:
            raise fake.NVMLError("GPU is lost")
        return UUIDS[handle]

    fake.nvmlDeviceGetUUID = lose_first
    assert gpu.detect() == gpu.Gpu((12, 0), "card 1", "nvml")


def test_a_slice_is_of_its_gpu(monkeypatch):
    fake = fake_nvml(monkeypatch, [(9, 0), (12, 0)])
    fake.nvmlDeviceGetHandleByUUID = lambda uuid: ("slice", uuid)
    fake.nvmlDeviceGetDeviceHandleFromMigDeviceHandle = lambda piece: 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    assert gpu.detect() == gpu.Gpu((12, 0), "card 1", "nvml")


def test_no_driver_and_no_torch_is_no_gpu(monkeypatch):
    fake = fake_nvml(monkeypatch, [(12, 0)])

    def fail():
        raise fake.NVMLError("driver not loaded")

    fake.nvmlInit = fail
    assert gpu.detect() is None


def fake_torch(monkeypatch, *, cuda, available=True, initialized=False):
    answers = SimpleNamespace(
        is_available=lambda: available,
        is_initialized=lambda: initialized,
        get_device_capability=lambda: (12, 0),
        get_device_name=lambda: "RTX",
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=answers, version=SimpleNamespace(cuda=cuda)))


def test_initialised_torch_comes_before_nvml(monkeypatch):
    fake_nvml(monkeypatch, [(9, 0)])
    fake_torch(monkeypatch, cuda="13.0", initialized=True)
    assert gpu.detect() == gpu.Gpu((12, 0), "RTX", "torch")


def test_rocm_is_no_nvidia_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    fake_torch(monkeypatch, cuda=None)
    assert gpu.detect() is None


def test_assumption_asks_nobody(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu.detect("sm120") == gpu.Gpu((12, 0), "assumed sm120", "SGLANG_SM120_ASSUME")
