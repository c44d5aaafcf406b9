"""What our methods do beyond loading and running: partial updates, moved weights, refusals.

Run with a checkpoint directory; prints {format: {check: outcome}} for each of `layer_formats.FORMATS`, or with the
argument `values` {"values": {check: outcome}} of `value_checks`.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from layer_formats import FORMATS, E, H, I, layer_and_method, load, module, write

from scripts.layers import draft_layer
from sglang_sm120.commands.plan import one_rank, simulate


def error(torch, form, layer, method, tensors, elsewhere=-1, dtype="int32"):
    """Relative error of a forward against the oracle on these tensors; `elsewhere` is the id that is not here."""
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, H, generator=g).bfloat16()
    ids = torch.tensor([[0, 1], [2, 3], [1, -1]])
    given = ids.where(ids >= 0, elsewhere).to(getattr(torch, dtype))
    probabilities = torch.rand(3, 2, generator=g)
    with one_rank.simulated_rank():
        got = method.apply(layer, StandardDispatchOutput(x, None, StandardTopKOutput(probabilities, given, None)))
    want = form.oracle(torch, x, tensors, ids, probabilities)
    return float((got.hidden_states.double() - want).norm() / want.norm())


def warm_ups(torch, form, tensors):
    """What is asked to be compiled when weights have been loaded, on a CPU and as if on a GPU."""
    from sglang_sm120.kernels.sm120 import fp4_moe
    from sglang_sm120.kernels.sm120.fp4_moe import warming
    from sglang_sm120.moe import base

    asked = []
    done = warming.WarmUp(kernels=9, seconds=1.5)
    for on_gpu in (False, True):
        layer, method = layer_and_method(torch, form)
        load(torch, layer, tensors)
        with (
            mock.patch.object(base, "_on_gpu", return_value=on_gpu),
            mock.patch.object(fp4_moe, "warm_up", return_value=done) as warm_up,
        ):
            method.process_weights_after_loading(layer)
            method.process_weights_after_loading(layer)
        asked.append([[c.args[0].num_experts, *c.args[1:], c.kwargs] for c in warm_up.call_args_list])
    return asked


def invariant(torch, form, tensors):
    """Whether a batch-invariant method's warm-up and forward ask the kernel for that."""
    from sglang_sm120.kernels.sm120 import fp4_moe
    from sglang_sm120.kernels.sm120.fp4_moe import warming
    from sglang_sm120.moe import base

    layer, method = layer_and_method(torch, form)
    method.batch_invariant = True
    load(torch, layer, tensors)
    done = warming.WarmUp(kernels=9, seconds=1.5)
    with (
        mock.patch.object(base, "_on_gpu", return_value=True),
        mock.patch.object(fp4_moe, "warm_up", return_value=done) as warm_up,
        mock.patch.object(fp4_moe, "fp4_moe", wraps=fp4_moe.fp4_moe) as run,
    ):
        method.process_weights_after_loading(layer)
        error(torch, form, layer, method, tensors)
    return [c.kwargs["batch_invariant"] for c in (*warm_up.call_args_list, *run.call_args_list)]


def refused(action):
    try:
        action()
    except (ValueError, RuntimeError, MemoryError) as found:
        return str(found)
    return "not refused"


def prepared(torch, form, tensors):
    layer, method = layer_and_method(torch, form)
    load(torch, layer, tensors)
    method.process_weights_after_loading(layer)
    return layer, method


def checks(torch, form):
    first = form.draw(torch, 1)
    layer, method = layer_and_method(torch, form)
    load(torch, layer, first)
    method.process_weights_after_loading(layer)
    method.process_weights_after_loading(layer)  # the second call in a row does nothing
    yield "twice prepared", error(torch, form, layer, method, first)

    far = {k: error(torch, form, layer, method, first, k * 2**32 + 2, "int64") for k in (1, -1, 2**30)}
    yield "int64 ids, one of them far from every expert", far

    yield "compiled before the first forward", warm_ups(torch, form, first)

    yield "batch-invariant", invariant(torch, form, first)

    some = {k: v for k, v in form.draw(torch, 2).items() if k in ((2, "w1"), (0, "w2"))}
    load(torch, layer, some)
    yield "before it is prepared again", refused(lambda: error(torch, form, layer, method, first))
    method.process_weights_after_loading(layer)
    yield "one gate and one down matrix updated", error(torch, form, layer, method, first | some)

    load(torch, layer, form.far(torch, 3))
    yield "range that graphs were not captured for", refused(lambda: method.process_weights_after_loading(layer))
    load(torch, layer, {k: v for k, v in first.items() if k[0] < 3})
    yield "part of the former weights", refused(lambda: method.process_weights_after_loading(layer))
    load(torch, layer, first)
    method.process_weights_after_loading(layer)
    yield "former weights after a refusal", error(torch, form, layer, method, first)

    for name in form.parameters:
        layer, method = prepared(torch, form, first)
        error(torch, form, layer, method, first)
        getattr(layer, name).data = getattr(layer, name).data.clone()
        yield f"moved {name}", refused(lambda: error(torch, form, layer, method, first))  # noqa: B023 - called at once
        yield f"update of moved {name}", refused(lambda: load(torch, layer, some))  # noqa: B023

    layer, method = layer_and_method(torch, form)
    load(torch, layer, {k: v for k, v in first.items() if k != (3, "w3")})
    yield "missing matrix", refused(lambda: method.process_weights_after_loading(layer))

    layer, method = layer_and_method(torch, form)
    yield "no loader at all", refused(lambda: method.process_weights_after_loading(layer))
    config = {"activation": "gelu", "gemm1_alpha": 1.7, "gemm1_clamp_limit": 7.0, "apply_router_weight_on_input": True}
    for name, value in config.items():
        yield name, refused(lambda n=name, v=value: method.create_moe_runner(layer, SimpleNamespace(**{n: v})))
    bad = {"width": (E, H, 48, torch.bfloat16), "hidden": (E, 80, I, torch.bfloat16), "dtype": (E, H, I, torch.float16)}
    for name, arguments in bad.items():
        yield name, refused(lambda a=arguments: method.create_weights(module(torch), *a, weight_loader=write))


def main():
    out = os.dup(1)
    os.dup2(2, 1)
    simulate.install("sm120", 96)
    draft_layer.resolve(Path(sys.argv[1]), 1, 1, 0)
    import torch
    import update_checks
    import value_checks

    if sys.argv[2:] == ["values"]:
        found = {"values": dict(value_checks.checks(torch))}
    else:
        found = {n: dict([*checks(torch, f), *update_checks.checks(torch, f)]) for n, f in FORMATS.items()}
    os.write(out, json.dumps(found).encode())


if __name__ == "__main__":
    main()
