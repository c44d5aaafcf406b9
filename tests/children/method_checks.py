"""What `Sm120Mxfp4MoEMethod` does beyond loading and running: partial updates, moved weights, refusals.

Run with a checkpoint directory; prints {check: outcome}. A layer is a bare module with what SGLang's FusedMoE gives.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from scripts.layers import draft_layer
from sglang_sm120.commands.plan import one_rank, simulate

E, H, I = 4, 64, 32  # noqa: E741 - the field's letters
SIZES = {"w1": (I, H), "w3": (I, H), "w2": (H, I)}


def layer_and_method(torch):
    from sglang_sm120.moe.mxfp4_method import Sm120Mxfp4MoEMethod

    layer = torch.nn.Module()
    vars(layer).update(
        moe_ep_size=1, moe_ep_rank=0, num_experts=E, num_local_experts=E, num_fused_shared_experts=0,
        uses_expert_location=False, should_fuse_routed_scaling_factor_in_topk=False, dispatcher=None,
        _map_global_expert_id_to_local_expert_id=lambda e: e,
    )  # fmt: skip
    method = Sm120Mxfp4MoEMethod("model.decoder.mlp.experts")
    method.create_weights(layer, E, H, I, torch.bfloat16, weight_loader=write)
    config = SimpleNamespace(activation="silu", is_gated=True, swiglu_limit=10.0, top_k=2, routed_scaling_factor=1.5)
    method.create_moe_runner(layer, config)
    return layer, method


def write(param, loaded, name, shard_id, expert_id):
    """SGLang's loader for one rank: gate rows, then up rows."""
    rows = param.data[expert_id]
    if shard_id != "w2":
        half = rows.shape[0] // 2
        rows = rows[:half] if shard_id == "w1" else rows[half:]
    rows.copy_(loaded)


def draw(torch, seed, low=118, high=124):
    """(expert, shard) -> codes and scales."""
    g = torch.Generator().manual_seed(seed)
    made = {}
    for expert in range(E):
        for shard, (rows, columns) in SIZES.items():
            codes = torch.randint(0, 256, (rows, columns // 2), generator=g, dtype=torch.uint8)
            scales = torch.randint(low, high, (rows, columns // 32), generator=g, dtype=torch.uint8)
            made[expert, shard] = codes, scales
    return made


def load(torch, layer, tensors):
    for (expert, shard), (codes, scales) in tensors.items():
        name = "w2" if shard == "w2" else "w13"
        for kind, data in (("weight", codes.view(torch.int8)), ("weight_scale_inv", scales.view(torch.float8_e8m0fnu))):
            param = getattr(layer, f"{name}_{kind}")
            param.weight_loader(param, data, f"experts.{name}_{kind}", shard_id=shard, expert_id=expert)


def error(torch, layer, method, tensors, elsewhere=-1, dtype="int32"):
    """Relative error of a forward against the oracle on these tensors; `elsewhere` is the id that is not here."""
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    from sglang_sm120.kernels.sm120 import fp4_moe

    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, H, generator=g).bfloat16()
    ids = torch.tensor([[0, 1], [2, 3], [1, -1]])
    given = ids.where(ids >= 0, elsewhere).to(getattr(torch, dtype))
    probabilities = torch.rand(3, 2, generator=g)
    with one_rank.simulated_rank():
        got = method.apply(layer, StandardDispatchOutput(x, None, StandardTopKOutput(probabilities, given, None)))
    stacked = []
    for part in (0, 1):
        both = [torch.cat([tensors[e, "w1"][part], tensors[e, "w3"][part]]) for e in range(E)]
        stacked += [torch.stack(both), torch.stack([tensors[e, "w2"][part] for e in range(E)])]
    weights = stacked[0], stacked[2], stacked[1], stacked[3]
    want = fp4_moe.reference.mxfp4_moe(x, *weights, ids, probabilities, routed_scaling_factor=1.5)
    return float((got.hidden_states.double() - want).norm() / want.norm())


def warm_ups(torch, tensors):
    """What is asked to be compiled when weights have been loaded, on a CPU and as if on a GPU."""
    from sglang_sm120.kernels.sm120 import fp4_moe
    from sglang_sm120.kernels.sm120.fp4_moe import warming
    from sglang_sm120.moe import base

    asked = []
    done = warming.WarmUp(kernels=9, seconds=1.5)
    for on_gpu in (False, True):
        layer, method = layer_and_method(torch)
        load(torch, layer, tensors)
        with (
            mock.patch.object(base, "_on_gpu", return_value=on_gpu),
            mock.patch.object(fp4_moe, "warm_up", return_value=done) as warm_up,
        ):
            method.process_weights_after_loading(layer)
            method.process_weights_after_loading(layer)
        asked.append([[c.args[0].num_experts, *c.args[1:], c.kwargs] for c in warm_up.call_args_list])
    return asked


def refused(action):
    try:
        action()
    except (ValueError, RuntimeError, MemoryError) as found:
        return str(found)
    return "not refused"


def prepared(torch, tensors):
    layer, method = layer_and_method(torch)
    load(torch, layer, tensors)
    method.process_weights_after_loading(layer)
    return layer, method


def checks(torch):
    first = draw(torch, 1)
    layer, method = layer_and_method(torch)
    load(torch, layer, first)
    method.process_weights_after_loading(layer)
    method.process_weights_after_loading(layer)  # the second call in a row does nothing
    yield "twice prepared", error(torch, layer, method, first)

    far = {k: error(torch, layer, method, first, k * 2**32 + 2, "int64") for k in (1, -1, 2**30)}
    yield "int64 ids, one of them far from every expert", far

    yield "compiled before the first forward", warm_ups(torch, first)

    some = {k: v for k, v in draw(torch, 2).items() if k in ((2, "w1"), (0, "w2"))}
    load(torch, layer, some)
    yield "before it is prepared again", refused(lambda: error(torch, layer, method, first))
    method.process_weights_after_loading(layer)
    yield "one gate and one down matrix updated", error(torch, layer, method, first | some)

    load(torch, layer, draw(torch, 3, low=1, high=40))
    yield "range that graphs were not captured for", refused(lambda: method.process_weights_after_loading(layer))
    load(torch, layer, {k: v for k, v in first.items() if k[0] < 3})
    yield "part of the former weights", refused(lambda: method.process_weights_after_loading(layer))
    load(torch, layer, first)
    method.process_weights_after_loading(layer)
    yield "former weights after a refusal", error(torch, layer, method, first)

    for name in ("w13_weight", "w13_weight_scale_inv", "w2_weight", "w2_weight_scale_inv"):
        layer, method = prepared(torch, first)
        error(torch, layer, method, first)
        getattr(layer, name).data = getattr(layer, name).data.clone()
        yield f"moved {name}", refused(lambda: error(torch, layer, method, first))  # noqa: B023 - called at once
        yield f"update of moved {name}", refused(lambda: load(torch, layer, some))  # noqa: B023

    layer, method = layer_and_method(torch)
    load(torch, layer, {k: v for k, v in first.items() if k != (3, "w3")})
    yield "missing matrix", refused(lambda: method.process_weights_after_loading(layer))

    layer, method = layer_and_method(torch)
    yield "no loader at all", refused(lambda: method.process_weights_after_loading(layer))
    config = {"activation": "gelu", "gemm1_alpha": 1.7, "gemm1_clamp_limit": 7.0, "apply_router_weight_on_input": True}
    for name, value in config.items():
        yield name, refused(lambda n=name, v=value: method.create_moe_runner(layer, SimpleNamespace(**{n: v})))
    bad = {"width": (E, H, 48, torch.bfloat16), "hidden": (E, 80, I, torch.bfloat16), "dtype": (E, H, I, torch.float16)}
    for name, arguments in bad.items():
        yield name, refused(lambda a=arguments: method.create_weights(torch.nn.Module(), *a, weight_loader=write))


def main():
    out = os.dup(1)
    os.dup2(2, 1)
    simulate.install("sm120", 96)
    draft_layer.resolve(Path(sys.argv[1]), 1, 1, 0)
    import torch
    import update_checks

    os.write(out, json.dumps(dict([*checks(torch), *update_checks.checks(torch)])).encode())


if __name__ == "__main__":
    main()
