"""PCIe between GPUs without NVLink: what sends their traffic through the IOMMU, and who relies on a direct path."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from sglang_sm120.commands.findings.record import Finding

SYS = Path("/sys")
NVIDIA, DISPLAY = "0x10de", "0x03"  # vendor, and the class of display controllers
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# PCI Express Base Specification: extended capabilities begin at 0x100, Access Control Services are number 13.
_EXTENDED, _ACS = 0x100, 0x000D
_CONTROL = 6  # offset of its control register, whose bits 2 and 3 send requests and completions to the root
_REDIRECTS = {2: "ReqRedir", 3: "CmpltRedir"}
NO_PEERS = "--disable-custom-all-reduce together with NCCL_P2P_DISABLE=1"


def found(sys: Path = SYS) -> list[Finding]:
    """What keeps two or more GPUs of this machine from reaching each other directly."""
    gpus = list(_gpus(sys))
    return [*_translated(gpus), *_redirected(gpus)] if len(gpus) > 1 else []


def _gpus(sys: Path) -> Iterator[Path]:
    for device in sorted((sys / "bus" / "pci" / "devices").glob("*")):
        if _text(device / "vendor") == NVIDIA and _text(device / "class").startswith(DISPLAY):
            yield device


def _translated(gpus: list[Path]) -> list[Finding]:
    types = {gpu.name: _text(gpu / "iommu_group" / "type") for gpu in gpus}
    through = [f"{name} ({kind})" for name, kind in types.items() if kind.startswith("DMA")]
    if not through:
        return []
    return [
        Finding(
            "iommu",
            f"the IOMMU translates for the GPUs {', '.join(through)}: direct copies between them may hang, although "
            "the driver reports peer access",
            f"boot with iommu=pt, or turn the IOMMU off in the firmware; until then {NO_PEERS}",
            "vllm-project/vllm#51513, local-inference-lab/rtx6kpro#15",
        )
    ]


def _redirected(gpus: list[Path]) -> list[Finding]:
    bridges = {bridge.name: bridge for gpu in gpus for bridge in _above(gpu)}
    bits = {name: _acs(bridge) for name, bridge in sorted(bridges.items())}
    redirecting = {
        name: "+".join(word for bit, word in _REDIRECTS.items() if value >> bit & 1) for name, value in bits.items()
    }
    said = [f"{name} ({words})" for name, words in redirecting.items() if words]
    if not said:
        return []
    commands = " ".join(f"setpci -s {name} ECAP_ACS+6.w=0000;" for name, words in redirecting.items() if words)
    return [
        Finding(
            "acs",
            f"ACS of the bridges {', '.join(said)} sends GPU-to-GPU traffic through the root complex",
            f"turn ACS off in the firmware, or as root after each boot: {commands} until then {NO_PEERS}",
            "NVIDIA/nccl#2079, vllm-project/vllm#51513",
        )
    ]


def _above(device: Path) -> Iterator[Path]:
    """The bridges between a device and its root, as /sys nests them."""
    yield from (parent for parent in device.resolve().parents if _ADDRESS.fullmatch(parent.name))


def _acs(bridge: Path) -> int:
    """ACS control register; 0 without one, or where only root may read it."""
    try:
        config = (bridge / "config").read_bytes()
    except OSError:
        return 0
    at = _EXTENDED
    for _ in range(64):  # a damaged list may be a circle
        if at < _EXTENDED or at + 8 > len(config):
            return 0
        (header,) = struct.unpack_from("<I", config, at)
        if header & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", config, at + _CONTROL)[0])
        at = header >> 20
    return 0


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def half_disabled(pairs: bool, disabled: bool, environment: Mapping[str, str]) -> list[Finding]:
    """NCCL told not to copy between peers, while SGLang's own all-reduce still does.

    Args:
        pairs: some group of ranks that sums has exactly two, on one host.
        disabled: `--disable-custom-all-reduce`.
        environment: of the launch.
    """
    if not pairs or disabled or environment.get("NCCL_P2P_DISABLE", "0") in ("", "0"):
        return []
    return [
        Finding(
            "custom-all-reduce",
            f"NCCL_P2P_DISABLE={environment['NCCL_P2P_DISABLE']} does not reach SGLang's own all-reduce, which is on "
            "between exactly two GPUs without NVLink and reads the other GPU's memory",
            "add --disable-custom-all-reduce",
            "vllm-project/vllm#51513",
        )
    ]
