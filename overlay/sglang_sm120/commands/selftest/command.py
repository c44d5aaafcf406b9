"""`sglang-sm120 selftest`: the kernel against the float64 oracle on this machine; on a GPU also its time and the floor.

The floor is the bytes that must move (weights and scales of the experts hit, activations in and out) over the copy
bandwidth measured in the same run; no kernel can be faster while its weights come from DRAM. For cards that
`speed_model` knows, its figure stands beside the measured one.
"""

from __future__ import annotations

import contextlib
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sglang_sm120 import __version__, gpu
from sglang_sm120.commands import gpu_timing
from sglang_sm120.commands.selftest import speed_model
from sglang_sm120.upstream import releases

SCHEMA = 1
# Two bf16 roundings (2^-9/sqrt(3) relative each at most) of intermediate and route, and one of the sum; for mxfp8 two
# e4m3 roundings (2^-4/sqrt(3) each at most, in the mean about half of that) on top.
BOUNDS = {"bf16": 3e-3, "mxfp8": 8e-2}


@dataclass(frozen=True)
class Case:
    """One layer and batch: E experts of H x I, top K, T tokens."""

    experts: int
    hidden: int
    inter: int
    top_k: int
    tokens: int

    def __str__(self) -> str:
        return f"E{self.experts} H{self.hidden} I{self.inter} top{self.top_k} T{self.tokens}"


CPU_CASES = [Case(4, 96, 64, 2, t) for t in (1, 5, 17)] + [Case(8, 160, 96, 2, 40)]
_FLASH_TP2, _V41_TP4 = (64, 4096, 1024, 6), (64, 5120, 576, 6)
GPU_CASES = [Case(*shape, t) for shape in (_FLASH_TP2, _V41_TP4) for t in (1, 6, 33, 129)] + [Case(*_FLASH_TP2, 1024)]
FULL_CASES = [Case(64, 7168, 192, 6, t) for t in (1, 8, 65, 2048)] + [Case(256, 4096, 2048, 6, t) for t in (4, 300)]
TIMED = [Case(256, 4096, 1024, 6, t) for t in (1, 2, 4, 16, 64, 256)]
TIMED_FULL = [Case(256, 4096, i, 6, t) for i in (2048, 512) for t in (1, 4, 16, 64, 256, 1024, 4096)]


def run(
    device: str | None = None, full: bool = False, progress: Callable[[str], None] = lambda _line: None
) -> dict[str, Any]:
    """All checks on `cpu` or `cuda` (default: cuda where there is one).

    Returns:
        A document with `correctness` and `timing` rows, raw samples included; `errors` says what failed.

    Raises:
        ValueError: `device` is not there.
    """
    import torch

    present = torch.cuda.is_available()
    device = device or ("cuda" if present else "cpu")
    if device not in ("cpu", "cuda") or (device == "cuda" and not present):
        good = "cpu or cuda" if present else "cpu (no CUDA GPU is usable here)"
        raise ValueError(f"--device is {device!r}; expected {good}")
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "selftest",
        "command": ["sglang-sm120", *sys.argv[1:]],
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": _versions(),
        "device": _describe(device),
        "correctness": [],
        "timing": [],
        "errors": [],
    }
    cases = CPU_CASES if device == "cpu" else GPU_CASES + (FULL_CASES if full else [])
    for case in cases:
        for activation in BOUNDS:
            progress(f"checking {case} {activation}")
            _check(document, case, activation, device)
    if device == "cuda":
        _time_all(document, TIMED + (TIMED_FULL if full else []), progress)
    return document


def run_sm120_code(
    tritons: list[Path], lean: bool, minutes: float | None, progress: Callable[[str], None] = lambda _line: None
) -> dict[str, Any]:  # fmt: skip
    """What Triton compiles for SM120, run on this SM90; see `sm120_code.command.run`."""
    from sglang_sm120.commands.selftest.sm120_code import command, compiling

    compiling.require_sm90()
    return command.run(
        tritons, lean, {"versions": _versions(), "device": _describe("cuda")}, progress, minutes or command.MINUTES
    )


def _versions() -> dict[str, str]:
    beside = {name: releases.installed(name) or "not installed" for name in ("sglang", "torch", "triton")}
    return {"sglang-sm120": __version__, "python": platform.python_version(), **beside}


def _describe(device: str) -> dict[str, Any]:
    import torch

    if device == "cpu":
        return {"type": "cpu", "name": platform.processor() or platform.machine(), "kernel": "Triton's interpreter"}
    properties = torch.cuda.get_device_properties(0)
    return {
        "type": "cuda",
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "clocks_mhz": _clocks(),
    }


def _clocks() -> dict[str, int] | None:
    """Present SM and memory clocks, from NVML; None without it."""
    with gpu.nvml() as pynvml:
        if pynvml is None:
            return None
        found: dict[str, int] = {}
        for handle in gpu.visible_handles(pynvml)[:1]:
            for name, kind in (("sm", pynvml.NVML_CLOCK_SM), ("memory", pynvml.NVML_CLOCK_MEM)):
                with contextlib.suppress(pynvml.NVMLError):  # GB10 has no memory clock of its own
                    found[name] = pynvml.nvmlDeviceGetClockInfo(handle, kind)
        return found or None


def _layer(case: Case, device: str) -> tuple[tuple[Any, Any, Any, Any], Any, Any, Any]:
    """Random codes, scales that bring some gates to the clamp at 10, and distinct experts for each token."""
    import torch

    g = torch.Generator(device=device).manual_seed(case.tokens)

    def draw(low: int, high: int, *shape: int) -> Any:
        return torch.randint(low, high, shape, generator=g, dtype=torch.uint8, device=device)

    e, h, i = case.experts, case.hidden, case.inter
    middle = 127 - (h.bit_length() + 1) // 2  # random codes have an rms of 2.9: gates then have one of about 3
    weights = (
        draw(0, 256, e, 2 * i, h // 2),
        draw(middle - 1, middle + 3, e, 2 * i, h // 32),
        draw(0, 256, e, h, i // 2),
        draw(middle - 1, middle + 3, e, h, i // 32),
    )
    x = torch.randn(case.tokens, h, generator=g, device=device).bfloat16()
    scores = torch.rand(case.tokens, e, generator=g, device=device)
    probabilities, ids = scores.topk(case.top_k, dim=-1)
    return weights, x, ids.to(torch.int32), probabilities / probabilities.sum(-1, keepdim=True)


def _check(document: dict[str, Any], case: Case, activation: str, device: str) -> None:
    import torch

    from sglang_sm120.kernels.sm120 import fp4_moe

    weights, x, ids, probabilities = _layer(case, device)
    want = fp4_moe.reference.mxfp4_moe(x, *weights, ids, probabilities)
    prepared = fp4_moe.prepare_mxfp4(*weights)
    out = torch.full_like(x, float("nan"))
    got = fp4_moe.fp4_moe(x, prepared, ids, probabilities, activation=activation, out=out)
    error = float((got.double() - want).norm() / want.norm())
    again = fp4_moe.fp4_moe(x, prepared, ids, probabilities, activation=activation)
    row = {"case": str(case), "activation": activation, "error": error, "bound": BOUNDS[activation]}
    row |= {"repeats_bits": bool(torch.equal(got, again)), "ok": error <= BOUNDS[activation]}
    document["correctness"].append(row)
    if not row["ok"] or not row["repeats_bits"]:
        what = f"relative error {error:.1e} is above {row['bound']:.0e}" if not row["ok"] else "a second run differs"
        document["errors"].append(f"{case} {activation}: {what}")


def _time_all(document: dict[str, Any], cases: list[Case], progress: Callable[[str], None]) -> None:
    import torch

    progress("measuring the copy bandwidth")
    bandwidth = _copy_bandwidth()
    device = document["device"]
    card = speed_model.card_of(device["name"], device["multiprocessors"])
    document |= {"copy_bytes_per_s": bandwidth, "l2_flush": "read"}
    document["model"] = {"card": card, "measured": False, "label": speed_model.LABEL} if card else None
    flush = gpu_timing.Flush()
    for case in cases:
        progress(f"timing {case}")
        document["timing"] += _time_case(case, bandwidth, flush, card)
        torch.cuda.empty_cache()


def _time_case(case: Case, bandwidth: float, flush: Callable[[], None], card: str | None) -> list[dict[str, Any]]:
    """A row for each activation mode; `model` holds the model's terms where the card is known."""
    from sglang_sm120.kernels.sm120 import fp4_moe

    weights, x, ids, probabilities = _layer(case, "cuda")
    hit = int(ids.unique().numel())
    moved = hit * 3 * case.hidden * case.inter * 17 // 32 + 4 * x.numel()
    prepared = fp4_moe.prepare_mxfp4(*weights)
    rows = []
    for activation in BOUNDS:
        call = partial(fp4_moe.fp4_moe, x, prepared, ids, probabilities, activation=activation)
        samples = _time(call, flush)
        row = {"activation": activation, **asdict(case), "experts_hit": hit, "bytes": moved}
        row |= {"floor_us": moved / bandwidth * 1e6, "median_us": statistics.median(samples), "samples_us": samples}
        rows.append(row | ({"model": model_of(case, activation, hit, card)} if card else {}))
    return rows


def model_of(case: Case, activation: str, hit: int, card: str) -> dict[str, float]:
    """The model's terms for a case on a card."""
    layer = case.experts, case.hidden, case.inter, case.top_k
    return speed_model.times(card, layer, case.tokens, activation, hit).document()


def _copy_bandwidth() -> float:
    """Bytes read plus written per second by a copy of 2 GiB, the median of ten."""
    import torch

    source = torch.randint(0, 255, (2 * 2**30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    samples = gpu_timing.times_us([lambda: target.copy_(source)] * 13, lambda: None)[3:]
    return 2 * source.numel() / (statistics.median(samples) * 1e-6)


def _time(call: Callable[[], Any], flush: Callable[[], None], repeats: int = 25) -> list[float]:
    """Microseconds of a CUDA-graph replay with cold L2."""
    graph = gpu_timing.captured(call)
    return gpu_timing.times_us([graph.replay] * (repeats + 3), flush)[3:]


def render_any(document: dict[str, Any]) -> str:
    """`render`, or that of the kind that the document is."""
    if document["kind"] == "sm120-code":
        from sglang_sm120.commands.selftest.sm120_code import command

        return command.render(document)
    return render(document)


def render(document: dict[str, Any]) -> str:
    """A compact table, at most 60 columns wide."""
    device = document["device"]
    lines = [f"sglang-sm120 selftest on {device['name']} ({device['type']})", _line(document["versions"])]
    for row in document["correctness"]:
        verdict = "ok" if row["ok"] and row["repeats_bits"] else "WRONG"
        lines.append(
            f"  {verdict:<5} {row['case']:<28} {row['activation']:<5} {row['error']:.1e} <= {row['bound']:.0e}"
        )
    if document["timing"]:
        lines += _timing(document)
    lines += [f"ERROR {e}" for e in document["errors"]]
    lines.append("The kernel is WRONG here; please report this output." if document["errors"] else _verdict(device))
    return "\n".join(lines)


def _verdict(device: dict[str, Any]) -> str:
    """What was right: the kernel as this GPU ran it, or its source without any GPU."""
    if device["type"] == "cuda":
        return "The kernel is right on this GPU."
    return f"The kernel's source is right in {device['kernel']}; no GPU ran it."


def _timing(document: dict[str, Any]) -> list[str]:
    """Measured beside the floor, and beside the model where there is one."""
    model = document.get("model")
    lines = [
        f"Copy bandwidth {document['copy_bytes_per_s'] / 1e12:.2f} TB/s; times in us: cold L2, CUDA graph, medians.",
        f"model: {model['card']}, {model['label']}." if model else "No model of this card, so no model column.",
        f"  {'I':>5} {'T':>5} {'mode':<5} {'floor':>8}{' ' + format('model', '>8') if model else ''} {'measured':>8} "
        f"{'of floor':>8}",
    ]
    for row in document["timing"]:
        modelled = f" {row['model']['model_us']:>8.1f}" if model else ""
        lines.append(
            f"  {row['inter']:>5} {row['tokens']:>5} {row['activation']:<5} {row['floor_us']:>8.1f}{modelled} "
            f"{row['median_us']:>8.1f} {row['floor_us'] / row['median_us']:>8.2f}"
        )
    return lines


def _line(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())
