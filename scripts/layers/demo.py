"""From a hybrid checkpoint on disk to the draft layer's numbers, on the installed SGLang.

    ./scripts/demo.sh [--json] [--model DIR] [-- SGLANG SERVER FLAGS]

1. writes a small hybrid FP8+NVFP4 checkpoint (or takes --model for the plan);
2. lets SGLang resolve a launch on SM120 with EAGLE, without and with the overlay;
3. loads the draft's MoE layer through SGLang's own weights code for a tensor-parallel and an expert-parallel rank, runs
   it, repeats that after a weight update, and compares with the float64 oracle.

On a machine with an SM12x GPU, and with --model, it then launches the server. Exit status 0 when every step is good.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.checkpoints import tiny
from sglang_sm120 import gpu
from sglang_sm120.commands.plan import command as plan
from sglang_sm120.commands.plan import document
from sglang_sm120.upstream import server_flags

EAGLE = server_flags.eagle()
DEFAULT_FLAGS = ["--tp", "2", *EAGLE]
RANKS = {
    "TP 2, rank 0": ["--tp", "2", "--rank", "0", "--update"],
    "EP 2, rank 1": ["--tp", "2", "--ep", "2", "--rank", "1"],
}
# Rounding the intermediate (once) and the result to bf16 costs up to 2^-9/sqrt(3) = 1.1e-3 of a value each, RMS.
ERROR_BOUND = 3e-3


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def layer(checkpoint: Path, arguments: list[str]) -> dict[str, Any]:
    """Run scripts/layers/draft_layer.py; its answer, or the end of what it said."""
    script = Path(__file__).with_name("draft_layer.py")
    done = subprocess.run([sys.executable, script, checkpoint, *arguments], capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"failed": "\n".join(done.stderr.strip().splitlines()[-4:])}


def gather(model: Path | None, flags: list[str], work: Path) -> dict[str, Any]:
    """All steps; two processes at a time, since each imports SGLang (about 10 s of one core)."""
    checkpoint = tiny.write(work / "hybrid")
    planned = model or checkpoint
    say(f"Resolving {planned} on SM120 and running the draft's experts on two kinds of rank (about a minute)")
    with ThreadPoolExecutor(2) as pool:
        stock, ours = (pool.submit(plan.make, planned, flags, "sm120", stock=s) for s in (True, False))
        layers = {name: pool.submit(layer, checkpoint, arguments) for name, arguments in RANKS.items()}
        return {
            "checkpoint": str(planned),
            "flags": flags,
            "stock": document.to_json(stock.result()),
            "overlay": document.to_json(ours.result()),
            "layers": {name: future.result() for name, future in layers.items()},
        }


def problems(result: dict[str, Any]) -> list[str]:
    """What went other than it should."""
    found = list(result["overlay"]["errors"])
    for name, answer in result["layers"].items():
        if "failed" in answer:
            found.append(f"{name}: {answer['failed']}")
            continue
        errors = [e for e in (answer["error"], answer["updated_error"]) if e is not None]
        found += [f"{name}: error {e:.1e} is above {ERROR_BOUND:.0e}" for e in errors if not e <= ERROR_BOUND]
    return found


def render(result: dict[str, Any]) -> str:
    """One screen."""
    stock, ours = result["stock"], result["overlay"]
    facts = ours["checkpoint"] or {}
    lines = [
        f"SGLang {ours['sglang']}, sglang-sm120 {ours['overlay']}, SM120 simulated",
        f"checkpoint   {facts.get('kind')}, {facts.get('experts')} experts, hidden {facts.get('hidden_size')}, "
        f"intermediate {facts.get('moe_intermediate_size')}",
        f"flags        {' '.join(result['flags'])}",
        "",
        f"{'':<8} {'stock SGLang':<44} with the overlay",
    ]
    for role in ("target", "draft"):
        cells = [(p[role] or {}).get("kernel", "none") for p in (stock, ours)]
        bad = any(e.startswith(f"{role}:") for e in stock["errors"])
        lines.append(f"{role:<8} {cells[0] + (' (not on SM120)' if bad else ''):<44} {cells[1]}")
    lines += ["", "The draft's experts, loaded by SGLang's NextN loader and run by the Triton kernel:"]
    for name, answer in result["layers"].items():
        if "failed" in answer:
            lines.append(f"  {name}: FAILED")
            continue
        again = answer["updated_error"]
        update = f", after a weight update {again:.1e}" if again is not None else ""
        lines.append(f"  {name}: {answer['method']}, error against the float64 oracle {answer['error']:.1e}{update}")
    found = problems(result)
    lines += ["", *(f"PROBLEM  {p}" for p in found)]
    lines.append("Everything as it should be." if not found else "See above.")
    return "\n".join(lines)


def launch(model: Path, flags: list[str]) -> None:
    """Become the server."""
    say(f"Launching SGLang on {model}")
    os.execv(sys.executable, [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), *flags])


def main() -> int:
    """Command line; what follows `--` are server flags."""
    words = sys.argv[1:]
    ours, flags = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--model", type=Path, metavar="DIR", help="plan this checkpoint, and serve it on an SM12x GPU")
    arguments = parser.parse_args(ours)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sglang-sm120-demo-") as work:
        result = gather(arguments.model, flags or DEFAULT_FLAGS, Path(work))
    result |= {"problems": problems(result), "seconds": round(time.monotonic() - started, 1)}
    print(json.dumps(result, indent=1) if arguments.json else render(result))
    present = gpu.detect()
    if arguments.model and not result["problems"] and present is not None and present.is_sm12x:
        launch(arguments.model, flags or DEFAULT_FLAGS)
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
