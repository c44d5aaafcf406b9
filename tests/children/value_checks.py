"""NVFP4 experts with values that no checkpoint should have, in a process that `method_checks` has set up."""

from __future__ import annotations

import logging
import math
from unittest import mock

from layer_formats import FORMATS, E, layer_and_method, load
from method_checks import error, refused

from sglang_sm120 import settings
from sglang_sm120.moe import choose
from sglang_sm120.upstream import server_flags

FORM = FORMATS["nvfp4"]
SCALES = {"NaN": 0x7F, "negative NaN": 0xFF, "negative": 0xB8}
MULTIPLIERS = {"zero": 0.0, "NaN": math.nan, "infinite": math.inf, "negative": -0.5}


def changed(torch, first, expert, shard, kind, value):
    """The same experts with one scale, or one multiplier, of another value."""
    made = {key: dict(kinds) for key, kinds in first.items()}
    tensor = made[expert, shard][kind].clone()
    if kind == "weight_scale":
        tensor.view(torch.uint8)[3, 1] = value
    else:
        tensor.fill_(value)
    made[expert, shard][kind] = tensor
    return made


def outcome(torch, tensors):
    """Error of a forward on what was delivered, or what was said of it."""
    layer, method = layer_and_method(torch, FORM)
    found = refused(lambda: (load(torch, layer, tensors), method.process_weights_after_loading(layer)))
    return found if method.weights is None else error(torch, FORM, layer, method, tensors)


def bad(torch, first):
    for name, byte in SCALES.items():
        for shard in ("w1", "w2"):
            yield f"{name} scale in {shard}", outcome(torch, changed(torch, first, 2, shard, "weight_scale", byte))
    for name, value in MULTIPLIERS.items():
        for shard in ("w3", "w2"):
            made = changed(torch, first, 1, shard, "weight_scale_2", value)
            yield f"{name} multiplier of {shard}", outcome(torch, made)
    for kind in ("weight", "weight_scale", "weight_scale_2"):
        made = {key: dict(kinds) for key, kinds in first.items()}
        del made[3, "w3"][kind]
        yield f"missing {kind}", outcome(torch, made)


def good(torch, first):
    zeros = {key: kinds | {"weight_scale": kinds["weight_scale"].clone()} for key, kinds in first.items()}
    for kinds in zeros.values():
        kinds["weight_scale"].view(torch.uint8)[::2] = 0
    yield "zero scales", outcome(torch, zeros)
    as_bytes = {k: v | {"weight_scale": v["weight_scale"].view(torch.uint8)} for k, v in first.items()}
    yield "scales stored as bytes", outcome(torch, as_bytes)
    floats = {k: v | {"weight_scale": v["weight_scale"].float()} for k, v in first.items()}
    layer, method = layer_and_method(torch, FORM)
    load(torch, layer, floats)
    method.process_weights_after_loading(layer)
    yield "scales stored as floats", error(torch, FORM, layer, method, first)


def other_formats(torch, first):
    """The bytes of one format under the other's names."""
    mxfp4 = FORMATS["mxfp4"]
    for name, value in {"e8m0": torch.ones(()).to(torch.float8_e8m0fnu), "odd": torch.tensor(1.0625)}.items():
        made = {k: v | {"weight_scale": value.expand(v["weight_scale"].shape)} for k, v in first.items()}
        yield f"{name} scales in NVFP4", outcome(torch, made)
    for name, value in {"e4m3": torch.ones(()).to(torch.float8_e4m3fn), "odd": torch.tensor(1.5)}.items():
        layer, _ = layer_and_method(torch, mxfp4)
        made = {k: {"weight_scale_inv": value.expand(2, 2)} for k in mxfp4.draw(torch, 1)}
        yield f"{name} scales in MXFP4", refused(lambda layer=layer, made=made: load(torch, layer, made))


def updates(torch, first):
    """Bad values that come while the server runs; and memory that was released and comes back as anything."""
    layer, method = layer_and_method(torch, FORM)
    load(torch, layer, first)
    method.process_weights_after_loading(layer)
    poisoned = changed(torch, first, 2, "w1", "weight_scale", 0xFF)
    load(torch, layer, poisoned)
    yield "NaN in an update", refused(lambda: method.process_weights_after_loading(layer))
    yield "used after it", refused(lambda: error(torch, FORM, layer, method, first))
    load(torch, layer, first)
    method.process_weights_after_loading(layer)
    yield "repaired", error(torch, FORM, layer, method, first)
    for name in ("nvfp4", "nvfp4 cast"):
        form = FORMATS[name]
        experts = form.draw(torch, 5)
        layer, method = layer_and_method(torch, form)
        load(torch, layer, experts)
        method.process_weights_after_loading(layer)
        with mock.patch.object(server_flags, "releases_weights", return_value=True):
            for parameter in form.parameters:
                held = getattr(layer, parameter).data.view(-1).view(torch.uint8)
                held[0::2], held[1::2] = 0x00, 0xFF
            for expert in range(E):  # a request for each
                load(torch, layer, {k: v for k, v in experts.items() if k[0] == expert})
                method.process_weights_after_loading(layer)
                if expert == 0:
                    yield f"released {name}, used half-way", refused(lambda: error(torch, form, layer, method, experts))  # noqa: B023
        yield f"released {name}, written in requests", error(torch, form, layer, method, experts)


def activation(_torch):
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("sglang_sm120").addHandler(handler)
    read = settings.read((), {"SGLANG_SM120_ACTIVATION": "mxfp8"})
    of = [choose.nvfp4_method(f"model.layers.{n}.mlp.experts", "p", "r", read).activation for n in (0, 1)]
    of.append(choose.mxfp4_method(None, FORMATS["mxfp4"].prefix, "sm120_triton", "p", "r", read).activation)
    yield "mxfp8", [of, [line for line in said if "SGLANG_SM120_ACTIVATION" in line]]


def checks(torch):
    first = FORM.draw(torch, 1)
    yield from bad(torch, first)
    yield from good(torch, first)
    yield from other_formats(torch, first)
    yield from updates(torch, first)
    yield from activation(torch)
