"""`sglang-sm120 bench --url URL`: SGLang's own serving benchmark over several loads, as a receipt that may be shown."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from sglang_sm120 import __version__, files
from sglang_sm120.commands.bench import server
from sglang_sm120.commands.isolated import EndedError, Isolated
from sglang_sm120.upstream import releases

SCHEMA = 1
CONCURRENCY, LENGTHS, OUTPUT = (1, 2, 4, 8, 16, 32), (1024, 8192), 256
REPEATS = 2  # of each load, whose difference is the noise
PER_SEQUENCE, LEAST = 2, 4  # requests of a repeat: so many for each sequence at once, and at least
LIMIT = 900.0  # seconds for one load
KEPT = (
    "duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput",
    "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_e2e_latency_ms", "accept_length",
)  # fmt: skip
CHILD = ("-m", "sglang_sm120.commands.bench.child")
Progress = Callable[[str, float], None]


def arguments(url: str, model: str, length: int, output: int, concurrency: int, seed: int) -> list[str]:
    """Of `sglang.bench_serving`, for a load of random token ids; prompts differ from seed to seed."""
    flags: dict[str, Any] = {
        "--backend": "sglang", "--base-url": url, "--model": model, "--tokenizer": model,
        "--dataset-name": "random-ids", "--random-input-len": length, "--random-output-len": output,
        "--random-range-ratio": 1.0, "--max-concurrency": concurrency, "--num-prompts": requests(concurrency),
        "--seed": seed, "--warmup-requests": 1,
    }  # fmt: skip
    return [*(str(word) for pair in flags.items() for word in pair), "--tokenize-prompt", "--disable-tqdm"]


def requests(concurrency: int) -> int:
    """Requests of one repeat."""
    return max(LEAST, PER_SEQUENCE * concurrency)


def run(
    url: str,
    concurrency: Sequence[int] = CONCURRENCY,
    lengths: Sequence[int] = LENGTHS,
    output: int = OUTPUT,
    model: Path | None = None,
    progress: Progress = lambda text, share: None,
    child: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure every load; a server that dies, or an interruption, leaves what was measured before.

    Args:
        url: of the server.
        concurrency: sequences at once.
        lengths, output: tokens of a prompt, and of an answer.
        model: directory of the checkpoint, whose tokenizer the benchmark wants; where the server says, if None.
        progress: gets what is running, and the share that is done.
        child: stands for the benchmark's process (tests).

    Raises:
        ServerError: the server does not answer, or no tokenizer is there.
    """
    about = server.info(url)
    directory = model or Path(about.get("tokenizer_path") or about.get("model_path") or "")
    if not child and not directory.is_dir():
        raise server.ServerError(
            "the checkpoint's directory, where the tokenizer is, is not on this machine; give --model"
        )
    said = server.overlay(url)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "bench",
        "overlay": __version__,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "client": {"python": platform.python_version(), "sglang": releases.installed()},
        "server": server.shown(about),
        "runners": said,
        "gpu": server.card(url, said),
        "checkpoint": server.checkpoint(directory),
        "output_tokens": output,
        "loads": [],
        "left_out": [],
        "complete": False,
        "errors": [],
    }
    room = about.get("context_length")
    fitting = [length for length in lengths if not isinstance(room, int) or length + output < room]
    document["left_out"] = [f"{n} prompt tokens: the server takes {room} in all" for n in lengths if n not in fitting]
    wanted = [(length, count) for length in fitting for count in concurrency]
    with TemporaryDirectory(prefix="sglang-sm120-bench-") as work:
        benchmark = Benchmark(list(child) or [sys.executable, *CHILD], Path(work) / "log")
        try:
            _measure(document, benchmark, (url, str(directory)), wanted, Path(work), progress)
        except KeyboardInterrupt:
            document["errors"].append("interrupted; the loads before are kept")
        finally:
            benchmark.end()
    return document


class Benchmark:
    """The benchmark's process, started when it is asked and again when it has died."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log = command, log
        self._process: Isolated | None = None

    def ask(self, question: dict[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
        """What the benchmark wrote, or what went wrong."""
        if self._process is None:
            self._process = Isolated(self._command, os.environ, self._log)
        try:
            *_, last = self._process.ask(json.dumps(question), LIMIT)
        except EndedError as error:
            self._process = None
            return None, f"the benchmark {error.how}: {error.why}"
        return (None, str(last["failed"])) if "failed" in last else (dict(last["done"]), None)

    def end(self) -> None:
        """Whatever it is doing."""
        if self._process is not None:
            self._process.kill()


def _measure(
    document: dict[str, Any],
    benchmark: Benchmark,
    where: tuple[str, str],
    wanted: Sequence[tuple[int, int]],
    work: Path,
    progress: Progress,
) -> None:
    """Every load, a row each; ends at the first after which the server is gone."""
    url, model = where
    for number, (length, concurrency) in enumerate(wanted):
        row: dict[str, Any] = {"prompt_tokens": length, "concurrency": concurrency, "repeats": []}
        row["requests"] = requests(concurrency)
        document["loads"].append(row)
        for repeat in range(REPEATS):
            name = f"{length} prompt tokens, {concurrency} at once"
            progress(f"{name}, {repeat + 1} of {REPEATS}", (number + repeat / REPEATS) / len(wanted))
            words = arguments(url, model, length, document["output_tokens"], concurrency, REPEATS * number + repeat)
            question = {"name": name, "arguments": words, "file": str(work / f"{number}-{repeat}.jsonl")}
            found, problem = benchmark.ask(question)
            if found is not None:
                row["repeats"].append({key: found.get(key) for key in KEPT})
            missing = requests(concurrency) - (found.get("completed") or 0) if found is not None else 0
            if (problem or missing > 0) and not server.is_alive(url):
                document["errors"].append(f"the server died at {name}: it no longer answers")
                document["died_at"] = {"prompt_tokens": length, "concurrency": concurrency}
                return
            if problem:
                document["errors"].append(f"{name}: {without_private(problem, url, model)}")
            elif missing > 0:
                document["errors"].append(f"{name}: {missing} of {requests(concurrency)} requests got no answer")
    document["complete"] = not document["errors"]


def without_private(text: str, url: str, model: str) -> str:
    """A message without the server's address and this machine's paths."""
    parts = urlsplit(url)
    for private, shown in ((url, "URL"), (parts.netloc, "HOST"), (parts.hostname or "HOST", "HOST"), (model, "MODEL")):
        text = text.replace(private, shown) if private else text
    return str(files.shareable(text))


def value(row: dict[str, Any], key: str) -> float | None:
    """The mean over a load's repeats; None where none has it."""
    found = [r[key] for r in row["repeats"] if isinstance(r.get(key), int | float)]
    return statistics.mean(found) if found else None


def lost(row: dict[str, Any]) -> int:
    """Requests that got no answer."""
    return sum(row["requests"] - (r["completed"] or 0) for r in row["repeats"])
