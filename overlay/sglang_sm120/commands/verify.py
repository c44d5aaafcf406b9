"""`sglang-sm120 verify --url URL`: is the overlay at work in a running server, and are its answers steady.

Asks only what SGLang serves: `/server_info` for the resolved flags, `/metrics` for what the ranks say of themselves,
and `/generate` for canary prompts at temperature 0. What a server does not show is reported as not seen, never as good.
"""

from __future__ import annotations

import json
import math
from typing import Any

from sglang_sm120 import __version__
from sglang_sm120.commands import client
from sglang_sm120.moe import known_kernels, metrics, runners
from sglang_sm120.settings import RUNNER

SCHEMA = 1
CANARIES = (
    "The capital of France is",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "def fibonacci(n):\n    ",
    "Repeat after me: red green blue red green blue red green",
)
NEW_TOKENS = 32


class ServerError(RuntimeError):
    """The server cannot be asked; the message says what came instead of an answer."""


def run(url: str, reference: str | None = None, timeout_s: float = 60.0, api_key: str | None = None) -> dict[str, Any]:
    """Check a server.

    Args:
        url: of the server, `http://host:port`.
        reference: another server of the same checkpoint without speculative decoding; at temperature 0 both must agree.
        timeout_s: for each request.
        api_key: of both servers.

    Returns:
        A document; `errors` are faults, `unseen` is what this server does not show.

    Raises:
        ServerError: the server cannot be reached or does not speak SGLang's protocol.
    """
    server = _Server(url, timeout_s, api_key)
    info = server.json("/server_info")
    _must_be_typed(info, f"{server.url}/server_info")
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "url": client.without_password(url),
        "overlay": __version__,
        "sglang": info.get("version"),
        "target_runner": info.get("moe_runner_backend"),
        "draft_runner": info.get("speculative_moe_runner_backend") if info.get("speculative_algorithm") else None,
        "ranks": {
            "expected": (info.get("tp_size") or 1) * (info.get("pp_size") or 1),
            "seen": None,
            "dispatches": None,
        },
        "canaries": [],
        "acceptance_length": None,
        "unseen": [],
        "errors": [],
    }
    _flags(document)
    _canaries(document, server, "answers")
    if reference is not None:
        _canaries(document, _Server(reference, timeout_s, api_key), "reference")
        _compare(document)
    _ranks(document, server)
    return document


def _must_be_typed(info: dict[str, Any], page: str) -> None:
    """The fields that are used, as SGLang types them; another server may have fields of the same names."""
    for names, types, wanted in (
        (("version", "moe_runner_backend", "speculative_moe_runner_backend"), (str,), "a text"),
        (("tp_size", "pp_size"), (int,), "a whole number"),
    ):
        for name in names:
            if info.get(name) is not None and not isinstance(info[name], types):
                raise ServerError(f"{page} is no SGLang server's: {name} is {info[name]!r}, expected {wanted}")


def _flags(document: dict[str, Any]) -> None:
    for flag, field in ((runners.TARGET_FLAG, "target_runner"), (runners.DRAFT_FLAG, "draft_runner")):
        runner = document[field]
        reason = known_kernels.why_not("nvfp4", runner) or ""
        if "SM100" in reason:
            document["errors"].append(f"the server resolved {flag} to {runner}: {reason}; the overlay was not at work")


def _canaries(document: dict[str, Any], server: _Server, name: str) -> None:
    """Each prompt twice at temperature 0; `name` is where the first answer is kept."""
    lengths = []
    for number, prompt in enumerate(CANARIES):
        first, again = (server.generate(prompt, NEW_TOKENS) for _ in range(2))
        if number == len(document["canaries"]):
            document["canaries"].append({"prompt": prompt})
        document["canaries"][number][name] = first["text"]
        if not first["text"].strip():
            document["errors"].append(f"{server.url} answers {prompt!r} with nothing")
        elif first["text"] != again["text"]:
            document["errors"].append(f"{server.url} answers {prompt!r} differently the second time, at temperature 0")
        lengths += [a for a in (first["acceptance"], again["acceptance"]) if a]
    if name == "answers" and lengths:
        document["acceptance_length"] = round(sum(lengths) / len(lengths), 3)


def _compare(document: dict[str, Any]) -> None:
    differ = [c["prompt"] for c in document["canaries"] if c["answers"] != c["reference"]]
    if differ:
        document["errors"].append(
            f"{len(differ)} of {len(CANARIES)} answers differ from the reference server's at temperature 0, "
            f"first {differ[0]!r}; speculative decoding must not change them"
        )


def _ranks(document: dict[str, Any], server: _Server) -> None:
    """What the ranks' metrics say: each process announces itself when our method first runs in it."""
    text = server.text("/metrics", allow_missing=True)
    if text is None:
        document["unseen"].append("ranks and kernels: start the server with --enable-metrics")
        return
    samples = _samples(text, f"{server.url}/metrics")
    if samples is None:
        document["unseen"].append("ranks and kernels: /metrics is read with prometheus-client; install it here")
        return
    infos = [labels for name, labels, value in samples if name == metrics.INFO and value == 1]
    counts = [value for name, _, value in samples if name == f"{metrics.DISPATCHES}_total"]
    ranks = document["ranks"]
    ranks["seen"] = len({i.get("pid") for i in infos})
    if not math.isfinite(sum(counts)):
        document["errors"].append(f"{server.url}/metrics counts {sum(counts)} dispatches; expected a number")
        return
    ranks["dispatches"] = int(sum(counts))
    versions = sorted({i.get("version", "") for i in infos} - {__version__})
    if versions:
        document["errors"].append(f"the server runs sglang-sm120 {', '.join(versions)}, this command is {__version__}")
    # Below SGLang 0.5.19 the flags cannot name our runner; there a rank that announces itself is what tells.
    if not infos and RUNNER not in (document["target_runner"], document["draft_runner"]):
        document["unseen"].append(f"ranks: no layer of this launch runs {RUNNER}, so none announces itself")
        return
    if ranks["seen"] < ranks["expected"]:
        document["errors"].append(
            f"{RUNNER} ran in {ranks['seen']} of {ranks['expected']} ranks; look for 'sglang-sm120' in the server's log"
        )
    elif not ranks["dispatches"]:
        document["errors"].append(f"the flags say {RUNNER}, but no layer was ever dispatched to it")


def _samples(page: str, url: str) -> list[tuple[str, dict[str, str], float]] | None:
    """(name, labels, value) of a page of metrics; None where the library that reads them is not installed."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        return None
    try:
        return [(s.name, s.labels, s.value) for family in text_string_to_metric_families(page) for s in family.samples]
    except ValueError as error:
        raise ServerError(f"{url} is no page of metrics: {error}") from error


class _Server:
    def __init__(self, url: str, timeout_s: float, api_key: str | None) -> None:
        self._asked = url.rstrip("/")
        self.url = client.without_password(self._asked)  # for messages
        self._timeout_s, self._api_key = timeout_s, api_key

    def _ask(self, path: str, body: dict[str, Any] | None = None, allow_missing: bool = False) -> bytes | None:
        """None: there is no such page, and that is allowed."""
        try:
            return client.ask(self._asked + path, body, self._timeout_s, self._api_key)
        except client.StatusError as error:
            if allow_missing and error.status == 404:
                return None
            raise ServerError(f"{self.url}{path} answers {error}") from error
        except OSError as error:
            raise ServerError(f"{self.url}{path} cannot be asked: {error}") from error

    def text(self, path: str, allow_missing: bool = False) -> str | None:
        """An answer as text; None if there is no such page and that is allowed."""
        raw = self._ask(path, allow_missing=allow_missing)
        return None if raw is None else raw.decode(errors="replace")

    def json(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """An answer that must be a JSON object."""
        raw = self._ask(path, body) or b""
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            start = raw[:60].decode(errors="replace").strip()
            raise ServerError(f"{self.url}{path} is no SGLang server's: it answers {start!r}")
        return answer

    def generate(self, prompt: str, tokens: int) -> dict[str, Any]:
        """Text and acceptance length of a greedy completion."""
        sampling = {"temperature": 0, "max_new_tokens": tokens}
        answer = self.json("/generate", {"text": prompt, "sampling_params": sampling})
        if not isinstance(answer.get("text"), str):
            raise ServerError(f"{self.url}/generate answers without a text")
        meta = answer.get("meta_info") or {}
        acceptance = meta.get("spec_accept_length") if isinstance(meta, dict) else None
        if not isinstance(meta, dict) or not isinstance(acceptance, (int, float, type(None))):
            raise ServerError(f"{self.url}/generate is no SGLang server's: its meta_info is {str(meta)[:60]}")
        return {"text": answer["text"], "acceptance": acceptance}


def render(document: dict[str, Any]) -> str:
    """The findings for people."""
    ranks = document["ranks"]
    lines = [
        f"{document['url']}: SGLang {document['sglang']}, sglang-sm120 {document['overlay']} asking",
        f"target  runner {document['target_runner']}",
        f"draft   runner {document['draft_runner']}" if document["draft_runner"] else "draft   none",
    ]
    if ranks["seen"] is not None:
        lines.append(f"ranks   {RUNNER} in {ranks['seen']} of {ranks['expected']}, {ranks['dispatches']} dispatches")
    if document["acceptance_length"]:
        lines.append(f"accept  {document['acceptance_length']} tokens a step over the canaries")
    lines += [f"canary  {c['prompt']!r} -> {c['answers'][:60]!r}" for c in document["canaries"]]
    lines += [f"unseen  {u}" for u in document["unseen"]]
    lines += [f"ERROR   {e}" for e in document["errors"]]
    lines.append("No fault found." if not document["errors"] else "See above.")
    return "\n".join(lines)
