"""What becomes of a layer whose weights are written more than once, in a process that `method_checks` has set up."""

from __future__ import annotations

import dataclasses
import weakref
from unittest import mock

from layer_formats import E, layer_and_method, load, module, write
from method_checks import error, prepared, refused
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_sm120.kernels.sm120 import fp4_moe
from sglang_sm120.kernels.sm120.fp4_moe.weights import prepare
from sglang_sm120.upstream import server_flags


def with_load_format(name):
    """SGLang's own scope, in which it loads a draft that has a load format of its own."""
    from sglang.srt.runtime_context import get_model

    return get_model().override(load_format=name)


def write_directly(torch, form, layer, tensors):
    """As a trainer does that has the parameters' addresses."""
    spare, _ = layer_and_method(torch, form)
    load(torch, spare, tensors)
    for name in form.parameters:
        getattr(layer, name).data.view(torch.uint8).copy_(getattr(spare, name).data.view(torch.uint8))


def dummies(torch, form, first):
    layer, method = layer_and_method(torch, form)
    for name in ("w13_weight", "w2_weight"):  # what memory holds by chance may be zeros, and an error then is 0 / 0
        codes = getattr(layer, name).data.view(torch.uint8)
        codes.copy_(torch.randint(0, 256, codes.shape, generator=torch.Generator().manual_seed(5)))
    with with_load_format("dummy"):
        method.process_weights_after_loading(layer)
        yield "dummy values are finite", error(torch, form, layer, method, held(torch, layer, method))
        load(torch, layer, first)
        method.process_weights_after_loading(layer)
        yield "dummy, then real", error(torch, form, layer, method, first)
        far = form.far(torch, 4)
        load(torch, layer, far)
        method.process_weights_after_loading(layer)
        yield "dummy, then scales out of the fast range", error(torch, form, layer, method, far)
        layer, method = prepared(torch, form, first)
        yield "real under a dummy load format", error(torch, form, layer, method, first)
    layer, method = layer_and_method(torch, form)
    with mock.patch.object(server_flags, "published", of_draft("dummy")):
        yield "only the draft is dummy", refused(lambda: method.process_weights_after_loading(layer))
    with with_load_format("dummy"), mock.patch.object(server_flags, "published", of_draft("auto")):
        layer, method = layer_and_method(torch, form)
        yield "only the target is dummy", refused(lambda: method.process_weights_after_loading(layer))


def of_draft(load_format):
    """The flags as published, with a load format of the draft."""
    published = server_flags.published
    return lambda field: load_format if field == "speculative_draft_load_format" else published(field)


def held(torch, layer, method):
    """(expert, shard) -> kind -> what a layer has now, of a copy."""
    copies = {f.name: getattr(method.weights, f.name) for f in dataclasses.fields(method.weights)}
    copies |= {n: t.clone() for n, t in copies.items() if isinstance(t, torch.Tensor)}
    given = fp4_moe.restore(dataclasses.replace(method.weights, **copies))
    half = len(given) // 2
    kinds = ("weight", "weight_scale", "weight_scale_2") if half == 3 else ("weight", "weight_scale_inv")
    made = {}
    for e in range(E):
        gate_up, down = ([t[e] for t in part] for part in (given[:half], given[half:]))
        rows = gate_up[0].shape[0] // 2
        for number, shard in enumerate(("w1", "w3")):
            cut = [t[number] if t.dim() == 1 else t[number * rows :][:rows] for t in gate_up]
            made[e, shard] = dict(zip(kinds, cut, strict=True))
        made[e, "w2"] = dict(zip(kinds, down, strict=True))
    return made


def sessions(torch, form, first, second):
    layer, method = prepared(torch, form, first)
    method.restore_weights_before_loading(layer)
    method.restore_weights_before_loading(layer)
    yield "within a session", refused(lambda: error(torch, form, layer, method, first))
    method.process_weights_after_loading(layer)
    yield "session without writes", error(torch, form, layer, method, first)
    method.restore_weights_before_loading(layer)
    write_directly(torch, form, layer, second)
    method.process_weights_after_loading(layer)
    yield "session with direct writes", error(torch, form, layer, method, second)
    method.restore_weights_before_loading(layer)
    half = {k: v for k, v in first.items() if k[0] % 2}
    load(torch, layer, half)
    method.process_weights_after_loading(layer)
    yield "session with half a load", error(torch, form, layer, method, second | half)
    yield "saved", refused(layer.state_dict)


def failures(torch, form, first, second):
    """The second of two repacks fails: w13 is prepared, w2 is not."""
    layer, method = layer_and_method(torch, form)
    load(torch, layer, first)
    calls = []
    original = prepare.repack

    def fails(*arguments, **named):
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError("out of memory")
        original(*arguments, **named)

    with mock.patch.object(prepare, "repack", fails):
        yield "half-way", refused(lambda: method.process_weights_after_loading(layer))
    yield "broken, used", refused(lambda: error(torch, form, layer, method, first))
    yield "broken, prepared again", refused(lambda: method.process_weights_after_loading(layer))
    yield "broken, saved", refused(layer.state_dict)
    method.restore_weights_before_loading(layer)
    load(torch, layer, {k: v for k, v in second.items() if k != (3, "w2")})
    yield "broken, loaded in part", refused(lambda: method.process_weights_after_loading(layer))
    load(torch, layer, second)
    method.process_weights_after_loading(layer)
    yield "broken, loaded wholly", error(torch, form, layer, method, second)
    calls.clear()
    with mock.patch.object(prepare, "repack", fails):
        yield "half-way back", refused(lambda: load(torch, layer, first))
    yield "broken on the way back, used", refused(lambda: error(torch, form, layer, method, first))
    load(torch, layer, first)
    method.process_weights_after_loading(layer)
    yield "broken on the way back, loaded wholly", error(torch, form, layer, method, first)


def ranges(torch, form, first):
    far = form.far(torch, 3)
    layer, method = prepared(torch, form, first)
    load(torch, layer, far)
    method.process_weights_after_loading(layer)
    yield "other range before any forward", error(torch, form, layer, method, far)
    with mock.patch.object(server_flags, "captures_graphs", return_value=False):
        layer, method = prepared(torch, form, first)
        error(torch, form, layer, method, first)
        load(torch, layer, far)
        method.process_weights_after_loading(layer)
        yield "other range without graphs", error(torch, form, layer, method, far)
    layer, method = prepared(torch, form, first)
    error(torch, form, layer, method, first)
    method.restore_weights_before_loading(layer)
    write_directly(torch, form, layer, far)
    refused(lambda: method.process_weights_after_loading(layer))
    spare, _ = layer_and_method(torch, form)
    load(torch, spare, far)
    same = [torch.equal(*(getattr(x, n).data.view(torch.uint8) for x in (layer, spare))) for n in form.parameters]
    yield "bytes that a refusal moved", [n for n, kept in zip(form.parameters, same, strict=True) if not kept]
    with mock.patch.object(server_flags, "experts_may_change", return_value=True):
        layer, method = prepared(torch, form, first)
    for name in form.parameters:  # as EPLB does it
        parameter = getattr(layer, name).data
        parameter[1].copy_(parameter[2])
    moved = first | {(1, shard): first[2, shard] for shard in ("w1", "w2", "w3")}
    yield "an expert copied over another", error(torch, form, layer, method, moved)


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


def memory(torch, form):
    """Of an update of a layer with the largest published experts (7168 x 3072)."""
    layer, hidden, inter = module(torch, 0), 7168, 3072  # no experts: the ledger is not the question
    method = form.method()
    method.create_weights(layer, 2, hidden, inter, torch.bfloat16, weight_loader=write)
    for name in form.parameters:
        getattr(layer, name).data.view(torch.uint8).fill_(0x20)
    method.experts.form.fill_dummy(layer)
    method.process_weights_after_loading(layer)
    named = {"weight": torch.zeros(inter, hidden // 2, dtype=torch.uint8)}
    named[form.scale] = torch.full((inter, hidden // form.group), form.byte, dtype=torch.uint8)
    with Peak() as peak:
        load(torch, layer, {(0, "w1"): named})
        method.process_weights_after_loading(layer)
    yield "peak bytes of an update", [peak.most, sum(getattr(layer, n).nbytes for n in form.parameters)]


def checks(torch, form):
    first, second = form.draw(torch, 1), form.draw(torch, 2)
    yield from dummies(torch, form, first)
    yield from sessions(torch, form, first, second)
    yield from failures(torch, form, first, second)
    yield from ranges(torch, form, first)
    yield from memory(torch, form)
