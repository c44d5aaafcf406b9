#!/usr/bin/env python3
"""One call for each tile in use, for `sanitize.py`. Needs an SM90.

Weights are zeros in the kernels' layout: no tool looks at values, and what makes random ones would be checked too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang_sm120.commands.selftest.sm120_code import cases, checks, compiling, proof
from sglang_sm120.commands.selftest.sm120_code.cases import Case

DEVICE = "cuda:0"


def calls_for(sizes: list[int], resize: Callable[[int], None]) -> proof.Work:
    """Fewest calls that use each tile of a GPU of any of these sizes."""
    work = proof.Work()
    for sms in sizes:
        resize(sms)
        work.add(cases.enumerate_cases(cases.LAYERS, sms, DEVICE), sms, DEVICE, lean=True)
    return work


def zeros(case: Case) -> Any:
    """Prepared weights of a case."""
    import torch

    from sglang_sm120.kernels.sm120 import fp4_moe

    e, h, i = case.layer.experts, case.layer.hidden, case.layer.inter

    def of(*shape: int, dtype: Any = torch.uint8) -> Any:
        return torch.zeros(shape, dtype=dtype, device=DEVICE)

    group = 16 if case.format == "nvfp4" else 32
    more = {}
    if case.format == "nvfp4":
        more = {"format": fp4_moe.NVFP4, "w13_global": of(e, 2, dtype=torch.float32)}
        more["w2_global"] = of(e, dtype=torch.float32)
    return fp4_moe.PreparedWeights(
        of(e, 2 * i, h // 2), of(e, 2 * i, h // group), of(e, h, i // 2), of(e, h, i // group), e, h, i, False, **more
    )


def run(work: proof.Work, resize: Callable[[int], None]) -> None:
    """Make the calls."""
    import torch

    from sglang_sm120.kernels.sm120 import fp4_moe

    for kind in dict.fromkeys((c.layer, c.format) for c in work.cases):
        chosen = [c for c in work.cases if (c.layer, c.format) == kind]
        w = zeros(chosen[0])
        for case in chosen:
            resize(work.cases[case][0])
            x, ids, weights = checks.random_inputs(case.layer, case.tokens, DEVICE)
            ids[0, 0] = -1
            fp4_moe.fp4_moe(x, w, ids, weights, **case.call)
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", choices=(*compiling.ARCHITECTURES, "own"), default="own")
    parser.add_argument("--compile", action="store_true", help="run nothing")
    a = parser.parse_args()
    compiling.require_sm90()
    with contextlib.ExitStack() as stack:
        resize, sizes = lambda sms: None, [1]
        if a.code != "own":
            sizes = list(compiling.SMS)
            cache = Path(os.environ["TRITON_CACHE_DIR"])
            resize = stack.enter_context(compiling.Sm120Code(a.code, sizes[0], cache)).resize
        work = calls_for(sizes, resize)
        problems = proof.compile_all(work.steps.values(), min(8, len(os.sched_getaffinity(0))))
        if problems:
            raise SystemExit("\n".join(problems))
        if not a.compile:
            run(work, resize)
        print("kernels:", *sorted({s.kernel.__name__ for s in work.steps.values()}))
        print(f"{len(work.cases)} calls ran for {len(work.used)} tiles")


if __name__ == "__main__":
    main()
