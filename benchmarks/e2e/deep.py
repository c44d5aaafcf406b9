"""A decode step of a deep model: stock Marlin beside sm120_triton, target experts in NVFP4 and in MXFP4.

    python benchmarks/e2e/deep.py --out DIR [--only NAME ...] [--layers 20] [--limit SECONDS]

Needs a GPU with room for LAYERS layers of 256 experts (3.4 to 3.6 GB each). Weights are dummies and there is no draft:
answers mean nothing, times and kernels of a step do not depend on them. Servers run one after the other. A step's time
is the difference of greedy requests of 144 and 16 new tokens over 128, the lowest of three each, so prefill and HTTP
are not in it. DIR/deep.json is the receipt: every request's seconds, and the kernels of ten profiled steps by name.
Dummy weights send tokens of a batch to nearly the same experts: fewer are read than a trained router would choose.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import re
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "overlay"))  # only the servers need it installed
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.e2e import client
from benchmarks.e2e.receipt import clean
from benchmarks.e2e.results import gpu, versions
from benchmarks.e2e.servers.launches import MARLIN, OFF, OURS_TOO, Launch
from benchmarks.e2e.servers.server import Server
from benchmarks.reports.commit import commit

FLAGS = ("--load-format", "dummy", "--swa-full-tokens-ratio", "0.5", "--mem-fraction-static", "0.92")
LAUNCHES = tuple(
    Launch(f"deep-{who}-{kind}", kind, f"{kind}, {says}", "deep", env=env, flags=(*runner, *FLAGS))
    for kind in ("hybrid-nvfp4", "mxfp4")
    for who, says, env, runner in (
        ("stock", "overlay off: Marlin", OFF, MARLIN),
        ("ours", "sm120_triton", OURS_TOO, ()),
    )
)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
SHORT, LONG, REPEATS = 16, 144, 3
PREFILL = 2000  # tokens
PROFILED, PROFILED_BATCHES = 10, (1, 8, 32)
_OURS = r"^(gate_up|down|sort_routes|combine|reorder_rows|round_rows_to_mxfp8|quantize_rows)\b"
_MARLINS = r"marlin|moe_align|moe_sum|topk_sum|count_and_sort_expert|silu_and_mul_clamp|act_and_mul"
FAMILIES = (  # the first that matches a kernel's name
    ("routed experts", f"{_OURS}|{_MARLINS}"),
    ("attention and indexer", r"flash|mla|indexer|paged_mqa|topk|rope|compress|hadamard"),
    ("hyper-connections", r"mhc|hc_|sinkhorn"),
    ("quantise", r"quant"),
    ("dense products", r"gemm|cutlass|cublas|nvjet|matmul|splitK|dot_kernel|gemv"),
)


def family(kernel: str) -> str:
    """Which part of a step a kernel belongs to."""
    return next((name for name, pattern in FAMILIES if re.search(pattern, kernel, re.I)), "rest")


def seconds(url: str, batch: int, new: int, seed: int) -> float:
    """Wall seconds of `batch` equal-length greedy requests sent at once."""
    prompts = [client.prompt(16, seed + n) for n in range(batch)]
    start = time.monotonic()
    with ThreadPoolExecutor(batch) as pool:
        rows = list(pool.map(lambda ids: client.generate(url, ids, new, timeout=90), prompts))
    bad = [row["error"] for row in rows if "error" in row]
    if bad:
        raise OSError(bad[0])
    return time.monotonic() - start


def step(url: str, batch: int) -> dict[str, Any]:
    """Milliseconds a decode step, from the lowest of each length."""
    seconds(url, batch, SHORT, 0)  # what is compiled for this batch
    short = [seconds(url, batch, SHORT, 100 * n) for n in range(REPEATS)]
    long = [seconds(url, batch, LONG, 100 * n) for n in range(REPEATS)]
    ms = (min(long) - min(short)) / (LONG - SHORT) * 1e3
    return {"batch": batch, "ms": round(ms, 3), "short_s": short, "long_s": long}


def prefill(url: str) -> dict[str, Any]:
    """Milliseconds of a prompt of `PREFILL` tokens with one answer token, median of five different ones."""
    taken = []
    for seed in range(6):
        row = client.generate(url, client.prompt(PREFILL, 9000 + seed), 1, timeout=120)
        if "error" in row:
            raise OSError(row["error"])
        taken.append(row["seconds"] * 1e3)
    return {"tokens": PREFILL, "ms": round(statistics.median(taken[1:]), 2), "samples": taken[1:]}


def profile(url: str, batch: int, directory: Path) -> dict[str, Any]:
    """Microseconds a step by family and by kernel, from a trace of `PROFILED` decode steps."""
    directory.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(seconds, url, batch, 400, 7)
        time.sleep(0.6)
        asked = {"output_dir": str(directory), "num_steps": PROFILED, "activities": ["GPU"]}
        client.http(f"{url}/start_profile", asked, 60)
        load.result()
    for _ in range(60):
        traces = sorted(directory.rglob("*.trace.json.gz"))
        if traces:
            break
        time.sleep(0.5)
    else:
        return {"batch": batch, "error": "no trace was written"}
    time.sleep(1.0)
    with gzip.open(traces[-1]) as f:
        events = [e for e in json.load(f)["traceEvents"] if e.get("cat") == "kernel"]
    by_kernel: collections.Counter[str] = collections.Counter()
    for event in events:
        by_kernel[event["name"][:120]] += event["dur"] / PROFILED
    by_family: collections.Counter[str] = collections.Counter()
    for name, us in by_kernel.items():
        by_family[family(name)] += us
    return {
        "batch": batch,
        "kernels_a_step": round(len(events) / PROFILED, 1),
        "families_us": {k: round(v, 1) for k, v in by_family.most_common()},
        "kernels_us": {k: round(v, 2) for k, v in by_kernel.most_common(60)},
    }


def measure(server: Server, out: Path, until: float) -> dict[str, Any]:
    """All of one server, as far as there is time."""
    found: dict[str, Any] = {"steps": [], "profiles": []}
    client.sizes(server.url, 512, 2048, until)
    found["prefill"] = prefill(server.url)
    for batch in BATCHES:
        if time.monotonic() < until - 10:
            found["steps"].append(step(server.url, batch))
    for batch in PROFILED_BATCHES:
        if time.monotonic() < until - 15:
            found["profiles"].append(profile(server.url, batch, out / f"{server.launch.name}-{batch}"))
    return found


def serve(launch: Launch, out: Path, caches: Path, layers: int, port: int, until: float) -> dict[str, Any]:
    """One server from start to stop; what it showed, or its error."""
    from sglang_sm120.checkpoint import headers_only

    model = out / f"model-{launch.kind}"
    if not model.exists():
        headers_only.write(model, launch.kind, "nextn", layers=layers)
    server = Server(launch, model, port, out, caches)
    command = ["python", *map(clean, server.command[1:])]
    row: dict[str, Any] = {"says": launch.says, "command": command, "ready_s": server.wait_ready(until - 30)}
    try:
        if row["ready_s"] is not None:
            row |= measure(server, out, until)
        elif server.is_alive():
            row["error"] = "not ready in time"
        else:
            row["error"] = f"ended with status {server.process.returncode}"
    except OSError as error:
        row["error"] = str(error)[:400]
    finally:
        server.stop()
    return row


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--caches", type=Path, help="where compiled kernels are kept; default OUT/caches")
    parser.add_argument("--only", nargs="+", choices=[launch.name for launch in LAUNCHES])
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--limit", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--port", type=int, default=22000)
    parser.add_argument("--commit")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    wanted = [launch for launch in LAUNCHES if not a.only or launch.name in a.only]
    document: dict[str, Any] = {
        "schema": 1,
        "kind": "deep",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": a.commit or commit(),
        "gpu": gpu(["0"]),
        "versions": versions(),
        "layers": a.layers,
        "servers": {},
    }
    failed = False
    for number, launch in enumerate(wanted):
        until = begun + a.limit * (number + 1) / len(wanted)
        row = serve(launch, a.out, a.caches or a.out / "caches", a.layers, a.port + 100 * number, until)
        failed |= "error" in row
        document["servers"][launch.name] = row
        steps = ", ".join(f"{s['batch']}: {s['ms']:.2f}" for s in row.get("steps", []))
        print(f"[{time.monotonic() - begun:5.0f} s] {launch.name}: ready {row['ready_s']} s {row.get('error', '')}")
        print(f"    prefill {row.get('prefill', {}).get('ms')} ms; a step in ms at batch {steps}", flush=True)
        (a.out / "deep.json").write_text(json.dumps(document, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
