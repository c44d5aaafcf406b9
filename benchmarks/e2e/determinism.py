"""The same greedy texts whatever is in the batch: 16 prompts alone, again, and all at once, of one server or of two.

A text is a request's tokens, and with them the log probability of each. Two texts are the same where all tokens and all
log probabilities are, bit for bit.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.e2e import client

PARTS = ("alone", "again", "together", "mixed")
AT_ONCE = 16
NEW_TOKENS = 96
PROMPTS = [client.prompt(9 + 13 * n, 900 + n) for n in range(AT_ONCE)]  # of 9 to 204 tokens, less than SGLang's page
_OTHERS = [client.prompt(700, 7000 + n) for n in range(4)]  # prefills beside decoding


def ask(url: str, until: float) -> dict[str, list[dict[str, Any]]]:
    """Every part as far as there is time (monotonic); `mixed` is `together` beside four longer prompts."""
    rows: dict[str, list[dict[str, Any]]] = {}
    parts = zip(PARTS, (1, 1, AT_ONCE, AT_ONCE + len(_OTHERS)), strict=True)
    for part, at_once in parts:
        left = until - time.monotonic()
        if left < 5:
            break

        def one(ids: list[int], timeout: float = min(120.0, left)) -> dict[str, Any]:
            return client.generate(url, ids, NEW_TOKENS, logprobs=True, timeout=timeout)

        todo = [*_OTHERS, *PROMPTS] if part == "mixed" else PROMPTS
        with ThreadPoolExecutor(at_once) as pool:
            rows[part] = list(pool.map(one, todo))[-AT_ONCE:]
    return rows


def difference(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, Any] | None:
    """How the texts of two lists differ; None where nothing was answered.

    `tokens`: prompts with the same tokens; `bits`: those with the same log probabilities too; `until`: tokens of each
    prompt before the first that differs; `largest`: difference of log probabilities of equal tokens.
    """
    pairs = [(a, b) for a, b in zip(one, other, strict=False) if "ids" in a and "ids" in b]
    if not pairs:
        return None
    until, differences, bits = [], [], 0
    for a, b in pairs:
        places = zip(a["ids"], b["ids"], strict=True)
        same = next((n for n, (x, y) in enumerate(places) if x != y), len(a["ids"]))
        apart = [abs(x - y) for x, y in zip(a["logprobs"][:same], b["logprobs"][:same], strict=True)]
        until.append(same)
        differences += apart
        bits += same == len(a["ids"]) and not any(apart)
    tokens = sum(same == len(a["ids"]) for same, (a, _) in zip(until, pairs, strict=True))
    return {
        "prompts": len(pairs),
        "tokens": tokens,
        "bits": bits,
        "until": until,
        "largest": max(differences, default=0),
    }


def findings(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Each question about the servers that were asked: what is compared with what, and how it differs."""
    asked = {name: result for name, result in results.items() if result.get("texts")}
    found = []
    for name, result in asked.items():
        alone = result["texts"].get("alone", [])
        for part in PARTS[1:]:
            found.append({"server": name, "against": "alone", "part": part} | _as_row(alone, result["texts"].get(part)))
        of = result.get("texts_of")
        if of in asked and of != name:
            for part in ("alone", "together"):
                other = asked[of]["texts"].get(part, [])
                found.append({"server": name, "against": of, "part": part} | _as_row(other, result["texts"].get(part)))
    return found


def _as_row(one: list[dict[str, Any]], other: list[dict[str, Any]] | None) -> dict[str, Any]:
    return difference(one, other or []) or {"prompts": 0}


def lines(found: list[dict[str, Any]]) -> list[str]:
    """The findings for a terminal."""
    said = []
    for row in found:
        what = f"{row['server']}, {row['part']}, against {row['against']}"
        if not row["prompts"]:
            said.append(f"{what}: not asked")
            continue
        said.append(
            f"{what}: {row['tokens']} of {row['prompts']} texts equal, {row['bits']} with all log probabilities; "
            f"first difference after {min(row['until'])} tokens, log probabilities within {row['largest']:.3g}"
        )
    return said
