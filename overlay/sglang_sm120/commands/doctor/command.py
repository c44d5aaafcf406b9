"""`sglang-sm120 doctor`: will the overlay work in this environment, and if not, what to do.

Reads distributions, files and NVML; imports neither torch nor SGLang.
"""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from importlib.metadata import entry_points
from typing import Any

from sglang_sm120 import __version__, gpu, plugin, settings
from sglang_sm120.commands.doctor import conflicts, jit_caches, machine
from sglang_sm120.commands.doctor.conflicts import GROUP, NAME
from sglang_sm120.commands.findings import links, toolchain, unified_memory
from sglang_sm120.moe import auto
from sglang_sm120.patches import PATCHES
from sglang_sm120.patching import records
from sglang_sm120.upstream import releases

PACKAGES = ("sglang", "torch", "triton", "flashinfer-python", "sglang-kernel", "transformers", "nvidia-ml-py")


def examine() -> dict[str, Any]:
    """The findings as a document; `errors` keep the overlay from working, `warnings` are unusual."""
    document: dict[str, Any] = {
        "schema": 1,
        "overlay": __version__,
        "python": platform.python_version(),
        "packages": {name: releases.installed(name) for name in PACKAGES},
        "gpu": None,
        "settings": {},
        "plugins": sorted(f"{e.name} ({e.dist.name if e.dist else 'unknown'})" for e in entry_points(group=GROUP)),
        "other_plugins": [],
        "patches": [],
        "machine": None,
        "auto": [],
        "tables": [],
        "caches": [],
        "findings": [],
        "hints": [],
        "warnings": [],
        "errors": [],
    }
    chosen = _settings(document)
    _plugin(document)
    found = gpu.detect(chosen.assume)
    if found is not None:
        document["gpu"] = {"name": found.name, "arch": found.arch, "source": found.source, "mixed": found.mixed}
        if found.mixed:
            document["warnings"].append("the visible GPUs differ; name equal ones in CUDA_VISIBLE_DEVICES")
    _patches(document, chosen, found)
    document["machine"] = machine.cards()
    document["hints"] = machine.hints(document["machine"])
    document["other_plugins"] = _add(document, conflicts.other_plugins(PATCHES))
    active = plugin.why_inactive(chosen, found) is None
    document["auto"] = auto.described(chosen.auto) if active else []
    document["tables"] = _add(document, conflicts.tables(machine.identity(document["machine"])))
    _add(document, conflicts.shadows())
    _caches(document)
    _findings(document, found)
    return document


def _add(document: dict[str, Any], found: conflicts.Found) -> list[dict[str, Any]]:
    document["warnings"] += found.warnings
    document["errors"] += found.errors
    document["hints"] += found.hints
    return found.rows


def _caches(document: dict[str, Any]) -> None:
    for leftover in jit_caches.leftovers():
        document["caches"].append(asdict(leftover))
        document["hints"].append(leftover.remedy)
        if leftover.blocks:
            document["warnings"].append(leftover.says)


def _findings(document: dict[str, Any], present: gpu.Gpu | None) -> None:
    """What breaks launches on these GPUs beside the MoE layers."""
    if present is None or not present.is_sm12x:
        return
    cards = document["machine"]["cards"] if document["machine"] else []
    found = toolchain.ptxas(present.arch)
    found += [] if present.source == settings.ASSUME.name else toolchain.sgl_kernel()
    found += links.found() if cards and all(card["nvlinks"] == 0 for card in cards) else []
    found += unified_memory.found() if present.arch == "sm121" else []
    document["findings"] = [asdict(finding) for finding in found]
    document["warnings"] += [finding.line for finding in found]


def _settings(document: dict[str, Any]) -> settings.Settings:
    document["settings"] = {v.name: os.environ[v.name] for v in settings.VARIABLES if v.name in os.environ}
    try:
        chosen = settings.read([p.name for p in PATCHES])
    except settings.SettingError as error:
        document["errors"].append(str(error))
        return settings.Settings()
    document["warnings"] += chosen.warnings
    return chosen


def _plugin(document: dict[str, Any]) -> None:
    ours = [e for e in entry_points(group=GROUP) if e.name == NAME]
    if len(ours) != 1:
        document["errors"].append(
            f"SGLang finds {len(ours)} plugins named {NAME}; expected one. "
            "Reinstall: pip install --force-reinstall sglang-sm120"
        )
    filtered = _filtered_out()
    if filtered:
        document["warnings"].append(f"{filtered}; add it, or unset the variable")


def _patches(document: dict[str, Any], chosen: settings.Settings, found: gpu.Gpu | None) -> None:
    """What `register()` would do here, without doing it."""
    release = releases.installed()
    if release is None:
        document["errors"].append("SGLang is not installed beside sglang-sm120; install it first: pip install sglang")
        return
    inactive = _filtered_out() or plugin.why_inactive(chosen, found)
    for patch in PATCHES:
        if inactive:
            state = records.State(patch.name, records.Status.NOT_APPLICABLE, inactive)
        else:
            applied = records.State(patch.name, records.Status.APPLIED, patch.summary)
            state = records.judge(patch, chosen) or applied
        if state.status == records.Status.FAILED:
            document["errors"].append(f"patch {patch.name}: {state.reason}")
        document["patches"].append(vars(state) | {"status": str(state.status)})


def _filtered_out() -> str | None:
    allowed = os.environ.get("SGLANG_PLUGINS")
    if allowed and NAME not in [n.strip() for n in allowed.split(",")]:
        return f"SGLANG_PLUGINS={allowed} leaves {NAME} out"
    return None


def _table(table: dict[str, Any]) -> str:
    return f"{table['path']}: {'used by launches here' if table['used'] else 'not used here: ' + table['problem']}"


def _card(card: dict[str, Any]) -> str:
    memory = f"{card['memory_gib']} GiB" if card["memory_gib"] else "memory shared with the CPU"
    pcie = f"PCIe {card['pcie_generation']} x{card['pcie_width']}" if card["pcie_width"] else "no PCIe link reported"
    return f"{card['name']} ({card['arch']}), {memory}, {pcie}, {card['nvlinks']} NVLinks"


def render(document: dict[str, Any], with_hints: bool = False) -> str:
    """The findings for people; `with_hints` adds what to do."""
    lines = [f"sglang-sm120 {document['overlay']}, Python {document['python']}"]
    lines += [f"  {name:<18} {value or 'not installed'}" for name, value in document["packages"].items()]
    card = document["gpu"]
    lines.append(f"GPU     {card['name']} ({card['arch']}, from {card['source']})" if card else "GPU     none found")
    if document["machine"]:
        lines.append(f"driver  {document['machine']['driver']}")
        lines += [f"card    {_card(c)}" for c in document["machine"]["cards"]]
    lines += [f"plugin  {name}" for name in document["plugins"]]
    lines += [f"plugin  {p['name']}: {p['says']}" for p in document["other_plugins"] if p["says"]]
    lines += [f"setting {name}={value}" for name, value in document["settings"].items()]
    lines += [f"patch   {p['name']}: {p['status']} ({p['reason']})" for p in document["patches"]]
    lines += [f"auto    {line}" for line in document["auto"]]
    lines += [f"tiles   {_table(t)}" for t in document["tables"]]
    lines += [f"cache   {c['says']}" for c in document["caches"] if not c["blocks"]]
    lines += [f"warning {w}" for w in document["warnings"]]
    lines += [f"ERROR   {e}" for e in document["errors"]]
    if with_hints:
        lines += [f"hint    {h}" for h in document["hints"]]
    elif document["hints"]:
        lines.append(f"hints: {len(document['hints'])}, shown with --fix-hints")
    if not document["errors"]:
        active = any(p["status"] == "applied" for p in document["patches"])
        lines.append(
            "The overlay is active here." if active else "No fault found; the overlay does nothing on this machine."
        )
    return "\n".join(lines)
