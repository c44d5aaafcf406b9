"""docs/E2E.md from the receipts of real servers: before and after, figures, each run's servers."""

from __future__ import annotations

import re
import statistics
from typing import Any

from scripts.markdown import markdown_table
from scripts.pages.server_run import agreement, receipts

STOCK, OURS = "stock-", "ours-"
Server = dict[str, Any]


def pairs(servers: dict[str, Server]) -> list[tuple[str, str]]:
    """Names of the servers of a run that differ in the overlay alone."""
    both = [(name, name.replace(STOCK, OURS)) for name in servers if STOCK in name]
    return [(stock, ours) for stock, ours in both if ours in servers]


def before_after() -> str:
    """The pairs of which one server serves and the other does not."""
    rows = []
    for name, receipt in receipts().items():
        servers = receipt["servers"]
        for stock, ours in pairs(servers):
            if serves(servers[stock]) != serves(servers[ours]):
                draft = "DSpark" if "DSPARK" in servers[ours]["command"] else "EAGLE"
                rows.append((f"hybrid, {draft}", outcome(servers[stock]), outcome(servers[ours]), link(name)))
    return markdown_table(("checkpoint", "stock", "with the overlay", "run"), rows)


def runs() -> str:
    """A row for each run: its servers by what became of them."""
    rows = []
    for name, receipt in receipts().items():
        served = [f"`{server}`" for server, facts in receipt["servers"].items() if serves(facts)]
        others = [f"`{server}`" for server, facts in receipt["servers"].items() if not serves(facts)]
        rows.append((link(name), ", ".join(served), ", ".join(others)))
    return markdown_table(("run", "served", "did not"), rows)


def comparisons() -> str:
    """Stock and overlay side by side where both served, in their newest run: answers and acceptance."""
    rows: dict[tuple[str, str], tuple[str, ...]] = {}
    for name, receipt in receipts().items():
        for stock, ours in pairs(receipt["servers"]):
            found = receipt["comparisons"].get(f"{stock} / {ours}")
            if found is not None:
                lengths = [answers(receipt["servers"][server])[1] for server in (stock, ours)]
                same = f"{found['identical']} of {found['prompts']}"
                rows.setdefault((stock, ours), (f"`{stock}`, `{ours}`", same, *lengths, link(name)))
    return markdown_table(("servers", "identical answers", "accept length, stock", "overlay", "run"), [*rows.values()])


def speeds() -> str:
    """Stock and overlay at the same request rate, from SGLang's own serving benchmark."""
    rows = []
    for name, receipt in receipts().items():
        for stock, ours in pairs(receipt["servers"]):
            runs = [{r["request_rate"]: r for r in receipt["servers"][n].get("bench", [])} for n in (stock, ours)]
            for rate in sorted(set(runs[0]) & set(runs[1])):
                both = [run[rate] for run in runs]
                figures = [
                    f"{both[0][what]:.{digits}f}, {both[1][what]:.{digits}f}"
                    for what, digits in (
                        ("output_throughput", 0),
                        ("median_ttft_ms", 0),
                        ("median_tpot_ms", 1),
                        ("accept_length", 3),
                    )
                ]
                rows.append((f"`{ours.replace(OURS, '')}`", f"{rate:g}", *figures, link(name)))
    head = ("servers", "requests/s", "output tokens/s", "TTFT, ms", "TPOT, ms", "accept length", "run")
    return markdown_table(head, rows)


def serves(server: Server) -> bool:
    """Whether it became ready."""
    return server.get("outcome") == "ready"


def outcome(server: Server) -> str:
    """In a few words; of one that ended, its last message."""
    if serves(server):
        return str(server.get("outcome_after_requests") or "serves")
    became = server.get("outcome", "not started")
    if became != "ended":
        return str(became)
    said = server.get("said") or server["log"][-1]
    if said.startswith("  File"):  # the frame beside the message
        said = server["log"][-1]
    return f"ends: `{shortened(said.strip())}`"


def shortened(message: str) -> str:
    """The first words of a message, without the path at its end."""
    message = message.split(" from 'sglang.")[0]
    return message if len(message) <= 110 else message[:110].rsplit(" ", 1)[0] + " …"


def answers(server: Server) -> tuple[str, str]:
    """How many prompts got the same answer twice, and the mean acceptance length."""
    alone, again = (server.get("answers", {}).get(part, []) for part in ("alone", "again"))
    lengths = [row["spec_accept_length"] for row in alone if "spec_accept_length" in row]
    repeated = agreement(alone, again)
    return "" if repeated == "not asked" else repeated, f"{statistics.fmean(lengths):.3f}" if lengths else ""


def link(name: str) -> str:
    """To a run's page."""
    label = re.sub(r"^\d+-(\d+-\d+)-sglang-[\w.]+?-", r"\1-", name)
    return f"[{label}](../benchmarks/receipts/e2e/{name}.md)"
