"""SGLang's own serving benchmark at one request rate after another, in one process: its imports take 10 s.

    python bench.py --url URL --model DIR --out DIR --rates 4:45 8:45

Writes a line of JSON for each rate to standard output when it is measured. A short unmeasured run comes first, because
SGLang's libraries compile kernels for row counts that they have not met.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# Mixed lengths: uniform from a tenth of these to these.
INPUT, OUTPUT, RANGE = 1024, 128, 0.1
KEPT = (
    "request_rate", "duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "output_throughput", "median_e2e_latency_ms", "p90_e2e_latency_ms", "p99_e2e_latency_ms", "median_ttft_ms",
    "p90_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p90_tpot_ms", "p99_tpot_ms", "concurrency", "accept_length",
    "max_concurrent_requests",
)  # fmt: skip


def arguments(url: str, model: str, rate: float, seconds: float, out: Path, seed: int) -> list[str]:
    """Of `sglang.bench_serving`, for requests that arrive at `rate` a second for about `seconds`."""
    flags: dict[str, Any] = {
        "--backend": "sglang", "--base-url": url, "--model": model, "--tokenizer": model,
        "--dataset-name": "random-ids", "--random-input-len": INPUT, "--random-output-len": OUTPUT,
        "--random-range-ratio": RANGE, "--request-rate": rate, "--num-prompts": round(rate * seconds),
        "--seed": seed, "--output-file": out, "--warmup-requests": 1,
    }  # fmt: skip
    words = [str(word) for pair in flags.items() for word in pair]
    return ["bench_serving", *words, "--tokenize-prompt", "--disable-tqdm"]


def measure(url: str, model: str, rate: float, seconds: float, out: Path, seed: int) -> dict[str, Any]:
    """One rate."""
    from sglang.bench_serving import cli_main

    file = out / f"bench-{seed}.jsonl"
    sys.argv = arguments(url, model, rate, seconds, file, seed)
    with contextlib.redirect_stdout(sys.stderr):
        cli_main()
    found = json.loads(file.read_text().splitlines()[-1])
    return {"requests": round(rate * seconds)} | {name: found.get(name) for name in KEPT}


def run(
    url: str, model: Path, out: Path, rates: tuple[tuple[float, float], ...], timeout: float
) -> tuple[list[dict[str, Any]], str]:
    """The rates that were measured within the time, and what went wrong.

    Args:
        url, model: the server, and the directory of its checkpoint.
        out: directory for logs.
        rates: requests a second, and for how many seconds.
        timeout: seconds for all.
    """
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--url", url, "--model", str(model), "--out", str(out), "--rates"]
    command += [f"{rate:g}:{seconds:g}" for rate, seconds in rates]
    error = ""
    with (out / "bench.out").open("w") as stdout, (out / "bench.err").open("w") as stderr:
        try:
            done = subprocess.run(command, stdout=stdout, stderr=stderr, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            error = f"not done after {timeout:.0f} s"
        else:
            if done.returncode:
                lines = (out / "bench.err").read_text().strip().splitlines()
                error = lines[-1][:300] if lines else f"exit status {done.returncode}"
    return [json.loads(line) for line in (out / "bench.out").read_text().splitlines()], error


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rates", nargs="+", required=True, metavar="RATE:SECONDS")
    a = parser.parse_args()
    rates = [tuple(float(x) for x in word.split(":")) for word in a.rates]
    measure(a.url, a.model, rates[-1][0], min(6.0, rates[-1][1]), a.out, len(rates))
    for seed, (rate, seconds) in enumerate(rates):
        print(json.dumps(measure(a.url, a.model, rate, seconds, a.out, seed)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
