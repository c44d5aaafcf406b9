"""A runner's process without SGLang and GPU: answers as `one_runner.child` does, each runner with its own fault.

`good`, `slow` and `quick` are right; `wrong` is off by a clamp, `crash` dies by a signal, `hang` never answers a check
and starts a process of its own, `unsteady` gives other bits, `refused` is refused by SGLang, `late` dies while it is
timed, `raises` fails a check, `full` has no room for a copy.
"""

import json
import os
import signal
import subprocess
import sys
import time

US = {"slow": 3.0, "quick": 0.5}


def say(**answer):
    print(json.dumps(answer), flush=True)


def row(case, error=1e-3, repeats=True, apart=False):
    say(row={"case": case, "error": error, "worst": error, "bound": 8e-3, "right": error < 8e-3, "repeats": repeats,
             "apart": apart})  # fmt: skip


def checked(runner):
    say(at="uniform T=1")
    row("uniform T=1")
    if runner == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        say(at=f"compiling in {child.pid}")
        time.sleep(600)
    say(at="clamp T=6")
    if runner in ("crash", "sm120_triton"):
        print("CUDA error: an illegal memory access was encountered", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGABRT)
    if runner == "raises":
        return say(failed="RuntimeError: no kernel image")
    row("clamp T=6", error=0.7 if runner == "wrong" else 1e-3, repeats=runner != "unsteady")
    row("gate and up apart T=6", error=0.5 if runner == "equal" else 1e-3, apart=True)
    return say(done="checked")


def main():
    request = json.loads(sys.stdin.readline())
    runner = request["runner"]
    say(at="building the layer")
    if runner == "refused":
        return say(refused="invalid choice: 'refused'")
    say(done="built", method=f"{runner.title()}Method", bound=8e-3, peak_bytes=1, free_bytes=100)
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "check":
            checked(runner)
        elif question["do"] == "bandwidth":
            if runner == "full":
                say(failed="OutOfMemoryError: CUDA out of memory")
                continue
            say(done="bandwidth", bytes_per_s=1e12)
        elif runner == "late" and question["tokens"] > 1:
            os._exit(7)
        else:
            time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
            us = (20.0 + question["tokens"]) * US.get(runner, 1.0)
            say(done="timed", tokens=question["tokens"], us=[us, us + 0.1] * 4, experts_hit=6.0)
    return None


main()
