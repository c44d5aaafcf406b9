"""The runners of V4-Flash's layers measured on this GPU, and a server whose runners `auto` takes from that.

    python benchmarks/e2e/runners.py --out DIR [--parts layers server] [--tp 2 1] [--minutes 4] [--caches DIR]

Needs a GPU, and SGLang and sglang-sm120 in the interpreter's environment; no network. `layers` measures NVFP4 and
MXFP4 layers at each tensor-parallel size. `server` writes a small hybrid checkpoint, measures its layers, starts a
server with EAGLE that follows that table, and runs `bench` and `report` against it. DIR gets the receipts, the tables
in `home`, and in `tune-logs` beside a table what each process said. The tables are printed last.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.e2e import checkpoints
from benchmarks.e2e.servers.launches import EAGLE, Launch
from benchmarks.e2e.servers.server import Server, environment

COLUMNS = 2048  # intermediate size of V4-Flash
KIND = "hybrid-nvfp4"
RUNNERS = ("sm120_triton", "marlin", "flashinfer_mxfp4")  # the last has no NVFP4 kernel and is refused there
PORT = 21700
CHOICE = """
import json, sys
from sglang_sm120.moe import measured, runner_tables
for entry in json.load(open(sys.argv[1]))["layers"]:
    for layer, found in runner_tables.rows_of({"layers": [entry]}).items():
        for drafted in (1, 2):
            choice = measured.choose(found, list(found), "sm120_triton", measured.Mix(drafted=(drafted,)))
            print(f"auto  {layer}, {drafted} a sequence: {choice.runner} ({choice.says()}); out: {dict(choice.out)}")
"""


class Session:
    """Commands with the environment that servers have, and what they print.

    Args:
        out: directory for receipts, tables and logs.
        caches: of compiled kernels.
    """

    def __init__(self, out: Path, caches: Path) -> None:
        self.out, self.caches, self.status = out, caches, 0
        self.variables = {"SGLANG_SM120_HOME": str(out / "home")}
        self.texts: list[str] = []

    def command(self, *words: str, limit: float) -> None:
        """Run `sglang-sm120`; its text is kept, its progress goes on."""
        self._run(["-m", "sglang_sm120.cli", *words], limit)

    def choice(self, table: Path) -> None:
        """What `auto` would take from a table."""
        if table.exists():
            self._run(["-c", CHOICE, str(table)], 60)

    def launch(self) -> Launch:
        """The server: a hybrid checkpoint with its draft, no runner named."""
        variables = self.variables | {"SGLANG_SM120_ASSUME": "sm120"}
        return Launch("auto", KIND, "runners from the table", env=variables, flags=EAGLE, text=True)

    def _run(self, words: list[str], limit: float) -> None:
        variables = environment(Launch("command", KIND, "", env=self.variables), self.caches)
        try:
            done = subprocess.run(
                [sys.executable, *words], env=variables, stdout=subprocess.PIPE, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired as error:
            self.texts.append(f"{' '.join(words[:4])}: not done after {limit:.0f} s\n{error.stdout or ''}")
            self.status = 1
            return
        self.texts.append(done.stdout)
        self.status |= done.returncode


def layers(session: Session, sizes: list[int], minutes: float) -> None:
    """Measure V4-Flash's layers, and show what `auto` makes of them."""
    for tp in sizes:
        receipt = session.out / f"runners-tp{tp}.json"
        shape = f"256,4096,{COLUMNS // tp},6"
        words = ["tune", "--only", "runners", "--shapes", f"{shape},nvfp4", shape, "--tp", str(tp)]
        words += ["--runners", *RUNNERS]
        session.command(*words, "--minutes", str(minutes), "--out", str(receipt), limit=60 * minutes + 60)
        session.choice(receipt)


def server(session: Session, models: Path, minutes: float) -> None:
    """Start a server that follows a table of its layers, and measure it."""
    checkpoints.write(models, KIND, 0, ())
    model = checkpoints.path(models, KIND, 0)
    words = ["tune", "--only", "runners", "--model", str(model), "--runners", "sm120_triton", "marlin"]
    session.command(*words, "--minutes", str(minutes), limit=60 * minutes + 60)
    running = Server(session.launch(), model, PORT, session.out, session.caches)
    try:
        if running.wait_ready(time.monotonic() + 240) is None:
            session.texts.append(f"the server was not ready: {running.log.read_text(errors='replace')[-1500:]}")
            session.status = 1
            return
        address = ["--url", running.url, "--model", str(model)]
        loads = ["--concurrency", "1,4,16", "--lengths", "256,1024", "--output", "64"]
        session.command("bench", *address, *loads, "--receipt", str(session.out / "bench.json"), limit=150)
        out = ["--minutes", "1", "--out", str(session.out / "report.json")]
        session.command("report", *address, *loads, *out, limit=240)
    finally:
        running.stop()
    log = running.log.read_text(errors="replace")
    session.texts += sorted(set(re.findall(r"MoE (?:target|draft): .*|.*measured here.*", log)))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=("layers", "server"), default=["layers", "server"])
    parser.add_argument("--tp", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--minutes", type=float, default=4.0, help="for each size")
    parser.add_argument("--models", type=Path, help="checkpoints (default: OUT/models)")
    parser.add_argument("--caches", type=Path, help="compiled kernels (default: OUT/caches)")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    session = Session(a.out.resolve(), (a.caches or a.out / "caches").resolve())
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    if "layers" in a.parts:
        layers(session, a.tp, a.minutes)
    if "server" in a.parts:
        server(session, (a.models or a.out / "models").resolve(), a.minutes)
    print("\n".join(session.texts))
    return session.status


if __name__ == "__main__":
    sys.exit(main())
