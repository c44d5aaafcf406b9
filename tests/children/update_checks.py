"""What becomes of a layer whose weights are written more than once, in a process that `method_checks` has set up."""

from __future__ import annotations

import dataclasses
import weakref
from unittest import mock

from method_checks import E, draw, error, layer_and_method, load, prepared, refused, write
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_sm120.kernels.sm120.fp4_moe.weights import repack
from sglang_sm120.upstream import server_flags

PARAMETERS = ("w13_weight", "w13_weight_scale_inv", "w2_weight", "w2_weight_scale_inv")


def with_load_format(name):
    """SGLang's own scope, in which it loads a draft that has a load format of its own."""
    from sglang.srt.runtime_context import get_model

    return get_model().override(load_format=name)


def write_directly(torch, layer, tensors):
    """As a trainer does that has the parameters' addresses."""
    spare, _ = layer_and_method(torch)
    load(torch, spare, tensors)
    for name in PARAMETERS:
        getattr(layer, name).data.view(torch.uint8).copy_(getattr(spare, name).data.view(torch.uint8))


def dummies(torch, first):
    layer, method = layer_and_method(torch)
    with with_load_format("dummy"):
        method.process_weights_after_loading(layer)
        yield "dummy values are finite", error(torch, layer, method, held(torch, layer, method))
        load(torch, layer, first)
        method.process_weights_after_loading(layer)
        yield "dummy, then real", error(torch, layer, method, first)
        far = draw(torch, 4, low=88, high=98)
        load(torch, layer, far)
        method.process_weights_after_loading(layer)
        yield "dummy, then scales out of the fast range", error(torch, layer, method, far)
        layer, method = prepared(torch, first)
        yield "real under a dummy load format", error(torch, layer, method, first)
    layer, method = layer_and_method(torch)
    with mock.patch.object(server_flags, "published", of_draft("dummy")):
        method.process_weights_after_loading(layer)
        yield "only the draft is dummy", method.weights is not None
    with with_load_format("dummy"), mock.patch.object(server_flags, "published", of_draft("auto")):
        layer, method = layer_and_method(torch)
        yield "only the target is dummy", refused(lambda: method.process_weights_after_loading(layer))


def of_draft(load_format):
    """The flags as published, with a load format of the draft."""
    published = server_flags.published
    return lambda field: load_format if field == "speculative_draft_load_format" else published(field)


def held(torch, layer, method):
    """(expert, shard) -> codes and scales that a layer has now."""
    copies = {f.name: getattr(method.weights, f.name) for f in dataclasses.fields(method.weights)}
    copies |= {n: t.clone() for n, t in copies.items() if isinstance(t, torch.Tensor)}
    w13, s13, w2, s2 = repack.restore(repack.PreparedWeights(**copies))
    rows = w13.shape[1] // 2
    made = {}
    for e in range(E):
        made[e, "w1"] = w13[e, :rows], s13[e, :rows]
        made[e, "w3"] = w13[e, rows:], s13[e, rows:]
        made[e, "w2"] = w2[e], s2[e]
    return made


def sessions(torch, first, second):
    layer, method = prepared(torch, first)
    method.restore_weights_before_loading(layer)
    method.restore_weights_before_loading(layer)
    yield "within a session", refused(lambda: error(torch, layer, method, first))
    method.process_weights_after_loading(layer)
    yield "session without writes", error(torch, layer, method, first)
    method.restore_weights_before_loading(layer)
    write_directly(torch, layer, second)
    method.process_weights_after_loading(layer)
    yield "session with direct writes", error(torch, layer, method, second)
    method.restore_weights_before_loading(layer)
    half = {k: v for k, v in first.items() if k[0] % 2}
    load(torch, layer, half)
    method.process_weights_after_loading(layer)
    yield "session with half a load", error(torch, layer, method, second | half)
    yield "saved", refused(layer.state_dict)


def failures(torch, first, second):
    """The second of four repacks fails: w13 is prepared, w2 is not."""
    layer, method = layer_and_method(torch)
    load(torch, layer, first)
    calls = []
    original = repack._repack

    def fails(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError("out of memory")
        original(*arguments, **named)

    with mock.patch.object(repack, "_repack", fails):
        yield "half-way", refused(lambda: method.process_weights_after_loading(layer))
    yield "broken, used", refused(lambda: error(torch, layer, method, first))
    yield "broken, prepared again", refused(lambda: method.process_weights_after_loading(layer))
    yield "broken, saved", refused(layer.state_dict)
    method.restore_weights_before_loading(layer)
    load(torch, layer, {k: v for k, v in second.items() if k != (3, "w2")})
    yield "broken, loaded in part", refused(lambda: method.process_weights_after_loading(layer))
    load(torch, layer, second)
    method.process_weights_after_loading(layer)
    yield "broken, loaded wholly", error(torch, layer, method, second)
    calls.clear()
    with mock.patch.object(repack, "_repack", fails):
        yield "half-way back", refused(lambda: load(torch, layer, first))
    yield "broken on the way back, used", refused(lambda: error(torch, layer, method, first))
    load(torch, layer, first)
    method.process_weights_after_loading(layer)
    yield "broken on the way back, loaded wholly", error(torch, layer, method, first)


def ranges(torch, first):
    far = draw(torch, 3, low=88, high=98)
    layer, method = prepared(torch, first)
    load(torch, layer, far)
    method.process_weights_after_loading(layer)
    yield "other range before any forward", error(torch, layer, method, far)
    with mock.patch.object(server_flags, "captures_graphs", return_value=False):
        layer, method = prepared(torch, first)
        error(torch, layer, method, first)
        load(torch, layer, far)
        method.process_weights_after_loading(layer)
        yield "other range without graphs", error(torch, layer, method, far)
    layer, method = prepared(torch, first)
    error(torch, layer, method, first)
    method.restore_weights_before_loading(layer)
    write_directly(torch, layer, far)
    refused(lambda: method.process_weights_after_loading(layer))
    spare, _ = layer_and_method(torch)
    load(torch, spare, far)
    same = [torch.equal(*(getattr(x, n).data.view(torch.uint8) for x in (layer, spare))) for n in PARAMETERS]
    yield "bytes that a refusal moved", [n for n, kept in zip(PARAMETERS, same, strict=True) if not kept]
    layer, method = prepared(torch, first)
    for name in PARAMETERS:  # as EPLB does it
        parameter = getattr(layer, name).data.view(torch.uint8)
        parameter[1].copy_(parameter[2])
    moved = first | {(1, shard): first[2, shard] for shard in ("w1", "w2", "w3")}
    yield "an expert copied over another", error(torch, layer, method, moved)


class Peak(TorchDispatchMode):
    """Bytes of tensors that were made inside and are alive at once, at most."""

    def __init__(self):
        super().__init__()
        self.alive = self.most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        import torch

        before = {a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor)}
        out = function(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple | list) else (out,):
            if isinstance(made, torch.Tensor) and made.untyped_storage()._cdata not in before:
                storage = made.untyped_storage()
                self.alive += storage.nbytes()
                self.most = max(self.most, self.alive)
                weakref.finalize(storage, self._free, storage.nbytes())
        return out

    def _free(self, size):
        self.alive -= size


def memory(torch):
    """Of an update of a layer with the largest published experts (7168 x 3072)."""
    from sglang_sm120.moe.mxfp4_method import Sm120Mxfp4MoEMethod

    layer, hidden, inter = torch.nn.Module(), 7168, 3072
    vars(layer).update(num_experts=0, uses_expert_location=False)  # the ledger is not the question
    method = Sm120Mxfp4MoEMethod("model.decoder.mlp.experts")
    method.create_weights(layer, 2, hidden, inter, torch.bfloat16, weight_loader=write)
    for name in PARAMETERS:
        getattr(layer, name).data.view(torch.uint8).fill_(120)
    method.process_weights_after_loading(layer)
    code, scale = torch.zeros(inter, hidden // 2, dtype=torch.int8), torch.full((inter, hidden // 32), 120).byte()
    with Peak() as peak:
        for kind, data in (("weight", code), ("weight_scale_inv", scale.view(torch.float8_e8m0fnu))):
            parameter = getattr(layer, f"w13_{kind}")
            parameter.weight_loader(parameter, data, f"experts.w13_{kind}", shard_id="w1", expert_id=0)
        method.process_weights_after_loading(layer)
    yield "peak bytes of an update", [peak.most, sum(getattr(layer, n).nbytes for n in PARAMETERS)]


def checks(torch):
    first, second = draw(torch, 1), draw(torch, 2)
    yield from dummies(torch, first)
    yield from sessions(torch, first, second)
    yield from failures(torch, first, second)
    yield from ranges(torch, first)
    yield from memory(torch)
