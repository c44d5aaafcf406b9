"""Compilers and compiled packages that a launch needs before its first token."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from sglang_sm120.commands.findings.record import Finding
from sglang_sm120.gpu import capability_of
from sglang_sm120.upstream import releases

TIMEOUT_S = 120


def ptxas(arch: str, environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Triton's assembler, asked whether it knows the GPU; the overlay's kernel is compiled with it first of all.

    Args:
        arch: `sm120` or `sm121`.
        environment: where Triton looks for another assembler.
    """
    program = assembler(environment)
    known = _answer([program, "--help"]) if program else None
    major, minor = capability_of(arch)
    wanted = f"sm_{major}{minor}a"
    if program is None or known is None or re.search(rf"\b{wanted}\b", known):
        return []
    release = re.search(r"release ([\d.]+)", _answer([program, "--version"]) or "")
    return [
        Finding(
            "ptxas",
            f"Triton's ptxas ({program}{f', CUDA {release[1]}' if release else ''}) has no {wanted}, so no Triton "
            "kernel compiles for this GPU",
            "install the Triton that this SGLang pins, or set TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH to the "
            "ptxas of a CUDA 13 toolkit",
            "triton-lang/triton#10331, vllm-project/vllm#29469",
        )
    ]


def assembler(environment: Mapping[str, str]) -> str | None:
    """The ptxas that Triton runs for Blackwell: the one of a variable, else its own; None without Triton."""
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        return None
    own = Path(next(iter(spec.submodule_search_locations)), "backends", "nvidia", "bin")
    name = "ptxas-blackwell" if (own / "ptxas-blackwell").is_file() else "ptxas"
    given = environment.get(f"TRITON_{name.upper().replace('-', '_')}_PATH")
    program = Path(given) if given else own / name
    return str(program) if program.is_file() else None


def sgl_kernel() -> list[Finding]:
    """SGLang's compiled package, imported in a process of its own: it was built for one torch and one CUDA."""
    if importlib.util.find_spec("sgl_kernel") is None:
        return []
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import sgl_kernel"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return []  # a slow disk is no fault
    if done.returncode == 0:
        return []
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    why = next(
        (line for line in reversed(lines) if re.match(r"\w*Error\b", line)), lines[-1] if lines else "no message"
    )
    release = releases.installed()
    return [
        Finding(
            "sgl_kernel",
            f"sgl_kernel {releases.installed('sglang-kernel') or ''} does not import with torch "
            f"{releases.installed('torch') or 'missing'}: {why[:200]}".replace("  ", " "),
            f"install what this SGLang pins: pip install --force-reinstall sglang=={release}"
            if release
            else "install SGLang: pip install sglang",
            "sgl-project/sglang#29317",
        )
    ]


def _answer(command: list[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
