"""Write the parts of README that come from receipts and from the list of releases; `--check` fails on stale ones.

    ./scripts/python docs/generate.py [--check]

Figures come from `benchmarks/receipts/` and from nowhere else.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sglang_sm120 import schemas
from sglang_sm120.upstream import releases

ROOT = Path(__file__).resolve().parent.parent
RECEIPTS = ROOT / "benchmarks" / "receipts"
SCHEMAS = {"selftest": 1, "bench_moe": 2}  # newest of each kind that is read here
NOTHING = "No receipt holds a time on an SM120 or SM121, so there is no figure to show."


SHAPE, ROUTING, OURS = "v4-flash-tp2", "uniform", "ours bf16"  # what README shows of a comparison of kernels


def receipts(kind: str, rows: str) -> list[tuple[str, dict[str, Any]]]:
    """File name and document of each receipt of a kind that has rows."""
    found = []
    for file in sorted(RECEIPTS.rglob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("kind") == kind and document.get(rows):
            try:
                schemas.check(document, f"a receipt of {kind}", SCHEMAS[kind], oldest=1)
            except schemas.SchemaError as error:
                raise SystemExit(f"{file}: {error}") from error
            found.append((str(file.relative_to(ROOT)), document))
    return found


def is_sm12x(document: dict[str, Any]) -> bool:
    """Whether a receipt of `selftest` is of a card that the overlay is for."""
    return (document["device"].get("capability") or (0, 0))[0] == 12


def chosen_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a comparison that README shows."""
    return [r for r in document["rows"] if r["shape"] == SHAPE and r["routing"] == ROUTING and OURS in r["us"]]


def figures() -> str:
    """What the receipts say: of SM120 and SM121 every self-test, of other GPUs the fullest comparison of kernels."""
    own = [item for item in receipts("selftest", "timing") if is_sm12x(item[1])]
    parts = [_selftest(*item) for item in own] or [NOTHING]
    comparisons = [item for item in receipts("bench_moe", "rows") if chosen_rows(item[1])]
    if comparisons:
        parts.append(_comparison(*max(comparisons, key=lambda item: (len(chosen_rows(item[1])), item[0]))))
    return "\n\n".join(parts)


def _grid(titles: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in [titles, ["---"] * len(titles), *rows]]


def _selftest(name: str, document: dict[str, Any]) -> str:
    device, versions = document["device"], document["versions"]
    capability = "".join(map(str, device["capability"]))
    rate = f"{document['copy_bytes_per_s'] / 1e12:.2f} TB/s"
    head = [
        f"{device['name']} (SM{capability}), {document['started'][:10]}, Triton {versions.get('triton')}: one layer,",
        f"cold L2, CUDA graph, medians. Floor: bytes over the copy bandwidth of the same run, {rate}.",
        f"[Receipt]({name}).",
    ]
    rows = [
        [
            f"{row['experts']}, {row['hidden']}, {row['inter']}",
            f"{row['tokens']}",
            row["activation"],
            f"{row['floor_us']:.1f}",
            f"{row['median_us']:.1f}",
        ]
        for row in document["timing"]
    ]
    titles = ["experts, hidden, intermediate", "tokens", "activations", "floor, µs", "kernel, µs"]
    return "\n".join([*head, "", *_grid(titles, rows)])


def _comparison(name: str, document: dict[str, Any]) -> str:
    head = [
        f"A comparison of kernels, not of cards: {document['gpu']}, Triton {document['triton']}, one layer of V4-Flash",
        "at TP2, uniform routing, cold L2, CUDA graph, medians in µs. It says nothing of the speed on SM120.",
        f"[Receipt]({name}); more in [benchmarks](benchmarks/README.md).",
    ]
    chosen = chosen_rows(document)
    contestants = [c for c in chosen[0]["us"] if all(c in row["us"] for row in chosen)]
    rows = [[f"{r['tokens']}", f"{r['floor_us']:.1f}"] + [f"{r['us'][c]:.1f}" for c in contestants] for r in chosen]
    return "\n".join([*head, "", *_grid(["tokens", "floor", *contestants], rows)])


def replace(text: str, marker: str, content: str, inline: bool = False) -> str:
    """The text with what stands between a marker's two comments replaced."""
    start, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    if text.count(start) != 1 or text.count(end) != 1:
        raise SystemExit(f"markers {start} and {end} must each stand once in README.md")
    head, rest = text.split(start)
    inner = content if inline else f"\n{content}\n"
    return head + start + inner + end + rest.split(end)[1]


def readme() -> str:
    """README.md as it should be."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = replace(text, "releases", releases.describe(), inline=True)
    return replace(text, "figures", figures())


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where README.md is out of date")
    check = parser.parse_args().check
    file, wanted = ROOT / "README.md", readme()
    if file.read_text(encoding="utf-8") == wanted:
        return 0
    if check:
        print("README.md is out of date; run docs/generate.py", file=sys.stderr)
        return 1
    file.write_text(wanted, encoding="utf-8")
    print("wrote README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
