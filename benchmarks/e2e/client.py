"""What is asked of a server: the same prompts of each, at temperature 0, long and many ones, and a short load."""

from __future__ import annotations

import json
import random
import statistics
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

VOCABULARY = 16384
NEW_TOKENS = 48


def prompt(length: int, seed: int) -> list[int]:
    """Token ids."""
    return random.Random(seed).choices(range(10, VOCABULARY), k=length)


LONG = 5000  # tokens, several chunks of a prefill
MANY = 64  # requests at once
PARTS = ("alone", "again", "batch", "logprobs", "long", "many", "aborted", "flushed", "afterwards")  # of `exchange`
PROMPTS = [prompt(length, seed) for seed, length in enumerate((7, 12, 19, 26, 33, 40, 48, 56))]


def post(url: str, path: str, body: dict[str, Any], timeout: float) -> Any:
    """A JSON answer.

    Raises:
        OSError: no answer, or one that is an error; the message holds the beginning of its body.
    """
    try:
        with urllib.request.urlopen(_request(url, path, body), timeout=timeout) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise OSError(f"HTTP {error.code}: {error.read()[:300].decode(errors='replace')}") from error


def _request(url: str, path: str, body: dict[str, Any]) -> urllib.request.Request:
    return urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})


def generate(
    url: str, ids: list[int], new: int = NEW_TOKENS, logprobs: bool = False, timeout: float = 120, rid: str = ""
) -> dict[str, Any]:
    """One greedy request: ids, seconds and what SGLang says of the draft; or the error."""
    body: dict[str, Any] = {"input_ids": ids, "return_logprob": logprobs} | ({"rid": rid} if rid else {})
    body["sampling_params"] = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
    start = time.monotonic()
    try:
        got = post(url, "/generate", body, timeout)
    except OSError as error:
        return {"error": f"{type(error).__name__}: {error}"[:400], "seconds": round(time.monotonic() - start, 4)}
    meta = got["meta_info"]
    row = {"seconds": round(time.monotonic() - start, 4), "ids": got["output_ids"]}
    row |= {k: v for k, v in meta.items() if k.startswith("spec_") and isinstance(v, (int, float))}
    if rid:
        row["finished"] = (meta.get("finish_reason") or {}).get("type")
    if logprobs:
        row["logprobs"] = [round(entry[0], 6) for entry in meta["output_token_logprobs"]]
    return row


def exchange(url: str, until: float) -> dict[str, Any]:
    """Every prompt alone, the first ones again, a batch of four, logprobs, and so on, as `PARTS` names them.

    Stops early when `until` has come: later parts are missing then.
    """
    rows: dict[str, Any] = {}

    def one(ids: list[int], **options: Any) -> dict[str, Any]:
        return generate(url, ids, timeout=max(1.0, min(120.0, until - time.monotonic())), **options)

    def ask(name: str, todo: list[list[int]], at_once: int, **options: Any) -> None:
        if until - time.monotonic() > 5:
            with ThreadPoolExecutor(at_once) as pool:
                rows[name] = list(pool.map(lambda ids: one(ids, **options), todo))

    ask("alone", PROMPTS, 1)
    ask("again", PROMPTS[:4], 1)
    ask("batch", PROMPTS[:4], 4)
    ask("logprobs", PROMPTS, 1, logprobs=True)
    long = prompt(LONG, 500)
    ask("long", [long, long], 1)
    ask("many", [prompt(24, 600 + n) for n in range(MANY)], MANY, new=16)
    if until - time.monotonic() > 15:
        rows["aborted"] = [abort(url)]
        rows["flushed"] = [flush(url)]
        ask("afterwards", PROMPTS[:4], 1)
    return rows


def abort(url: str, after: float = 0.5) -> dict[str, Any]:
    """A request of 4000 tokens that is aborted `after` seconds; how it ended."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(generate, url, PROMPTS[0], 4000, timeout=60, rid="to-be-aborted")
        time.sleep(after)
        try:
            urllib.request.urlopen(_request(url, "/abort_request", {"rid": "to-be-aborted"}), timeout=10).close()
        except OSError as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}
        row = asked.result()
    return {"tokens": len(row.pop("ids", [])), "asked": 4000} | row


def flush(url: str) -> dict[str, Any]:
    """Empty the server's prefix cache."""
    try:
        with urllib.request.urlopen(_request(url, "/flush_cache", {}), timeout=20) as answer:
            return {"status": answer.status}
    except OSError as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def sizes(url: str, step: int, most: int, until: float) -> list[dict[str, Any]]:
    """Prompts of `step`, twice `step`, ... to `most` tokens, one after the other, as far as there is time (monotonic).

    What SGLang's libraries compile for a prefill of a new size they then have.
    """
    rows = []
    for length in range(step, most + 1, step):
        left = until - time.monotonic()
        if left < 1:
            break
        rows.append(generate(url, prompt(length, 5000 + length), 8, timeout=left) | {"prompt_tokens": length})
    return rows


def load(url: str, at_once: int, count: int, length: int = 32, new: int = 64, timeout: float = 60) -> dict[str, Any]:
    """`count` requests, `at_once` at a time, each sent when an earlier one is answered."""
    start = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        seeds = range(1000, 1000 + count)
        rows = list(pool.map(lambda seed: generate(url, prompt(length, seed), new, timeout=timeout), seeds))
    wall = time.monotonic() - start
    good = [row for row in rows if "error" not in row]
    seconds = sorted(row["seconds"] for row in good)
    return {
        "at_once": at_once,
        "requests": count,
        "errors": [row["error"] for row in rows if "error" in row],
        "prompt_tokens": length,
        "new_tokens": new,
        "wall_s": round(wall, 3),
        "tokens_per_s": round(sum(len(row["ids"]) for row in good) / wall, 1),
        "accept_length": round(statistics.fmean(row.get("spec_accept_length", 1.0) for row in good), 3)
        if good
        else None,
        "seconds": seconds,
    }


def update(url: str, directory: str, timeout: float = 90) -> dict[str, Any]:
    """Load other weights into the running server."""
    start = time.monotonic()
    try:
        got = post(url, "/update_weights_from_disk", {"model_path": directory}, timeout)
    except OSError as error:
        got = {"success": False, "message": f"{type(error).__name__}: {error}"[:600]}
    return {"success": got["success"], "message": got["message"], "seconds": round(time.monotonic() - start, 2)}
