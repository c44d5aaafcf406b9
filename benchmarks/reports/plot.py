#!/usr/bin/env python3
"""Draw receipts of bench_moe.py: the time of a layer against its tokens, and the fraction of the floor.

plot.py receipt.json --out DIRECTORY             writes SHAPE-ROUTING.svg for each pair in the receipt
plot.py receipt.json --out DIRECTORY --check     exit status 1 if a figure there shows other figures than the receipt

Drawing needs matplotlib, the check does not: each file holds, as its description, the data that it shows.
"""

from __future__ import annotations

import argparse
import json
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.reports import receipts

# Okabe and Ito's colours, which readers with any colour vision tell apart (their yellow is too faint for a line), and a
# marker each for readers of a grey print.
STYLES = {
    "ours bf16": ("#0072B2", "o"),
    "ours mxfp8": ("#56B4E9", "s"),
    "ours bf16 batch-invariant": ("#56B4E9", "x"),
    "triton_kernels": ("#E69F00", "^"),
    "marlin": ("#D55E00", "v"),
    "flashinfer sm90 mixed": ("#009E73", "D"),
    "humming": ("#CC79A7", "P"),
    "naive dot_scaled": ("#000000", "*"),
}
OTHER = ("#000000", ".")
FLOOR = "#808080"
DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"
Data = dict[str, Any]


def data_of(receipt: dict[str, Any], name: str) -> dict[str, Data]:
    """Name of a figure -> what it shows: a title, the source, tokens, the floor and each contestant's times in µs.

    Args:
        receipt: of bench_moe.py.
        name: of its file.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sorted(receipt["rows"], key=lambda row: row["tokens"]):
        groups.setdefault((row["shape"], row["routing"]), []).append(row)
    source = f"{name}: {receipt['gpu']}, Triton {receipt['triton']}, commit {receipt['commit'][:10]}"
    return {
        f"{shape}-{routing}": {
            "title": f"{shape}, {routing} routing",
            "source": source,
            "tokens": [row["tokens"] for row in rows],
            "floor_us": [row["floor_us"] for row in rows],
            "us": {n: [row["us"].get(n) for row in rows] for n in dict.fromkeys(n for row in rows for n in row["us"])},
        }
        for (shape, routing), rows in groups.items()
    }


def draw(data: Data) -> Any:
    """A matplotlib figure of two panels with one legend."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    times, shares = figure.subplots(1, 2)
    floor = dict(zip(data["tokens"], data["floor_us"], strict=True))
    times.plot(*zip(*floor.items(), strict=True), color=FLOOR, linestyle="--", label="floor")
    for name, values in data["us"].items():
        timed = {t: us for t, us in zip(data["tokens"], values, strict=True) if us is not None}
        colour, marker = STYLES.get(name, OTHER)
        style = {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.5}
        times.plot(list(timed), list(timed.values()), label=name, **style)
        shares.plot(list(timed), [floor[t] / us for t, us in timed.items()], **style)
    times.set(yscale="log", ylabel="Time of a layer (µs)", title="Time")
    shares.set(ylim=(0, 1), ylabel="Floor ÷ time", title="Fraction of the floor")
    for axes in (times, shares):
        axes.set_xscale("log", base=2)
        axes.set_xticks(data["tokens"], labels=[str(t) for t in data["tokens"]], fontsize=8, rotation=45)
        axes.set_xticks([], minor=True)
        axes.set_xlabel("Tokens")
        axes.grid(color="#dddddd")
    figure.suptitle(data["title"])
    figure.legend(
        loc="outside lower center", ncols=4, frameon=False, fontsize=9, title=data["source"], title_fontsize=8
    )  # fmt: skip
    return figure


def save(data: Data, file: Path) -> None:
    """Write the figure with its data; the same data give the same bytes with the same matplotlib."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": file.stem}):
        draw(data).savefig(file, metadata={"Date": None, "Title": data["title"], "Description": json.dumps(data)})


def shown(file: Path) -> Data | None:
    """The data of a figure; None if there is no such file or it says nothing of its data."""
    try:
        description = next(xml.parse(file).iter(DESCRIPTION), None)
        return None if description is None else json.loads(description.text or "null")
    except (OSError, xml.ParseError, json.JSONDecodeError):
        return None


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("receipt", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--check", action="store_true", help="write nothing; compare the figures' data")
    options = parser.parse_args()
    figures = data_of(receipts.receipt(options.receipt), options.receipt.name)
    files = {options.out / f"{name}.svg": data for name, data in figures.items()}
    if options.check:
        old = [file for file, data in files.items() if shown(file) != data]
        for file in old:
            print(f"{file} does not show what {options.receipt} holds; draw it again", file=sys.stderr)
        return int(bool(old))
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        for file, data in files.items():
            save(data, file)
            print(file)
    except ModuleNotFoundError as error:
        print(f"drawing needs matplotlib ({error}): pip install matplotlib", file=sys.stderr)
        return 1
    return int(not files)


if __name__ == "__main__":
    sys.exit(main())
