"""The methods that layers get, compared with what the flags give them."""

import logging

import pytest

from sglang_sm120.patching import built_methods
from sglang_sm120.upstream import built_layers, server_flags


class Marlin:
    pass


class Ours:
    pass


Ours.__module__ = "sglang_sm120.moe.mxfp4_method"
LAYER, LINEAR = object(), object()


class Configuration:
    """Drafts get Marlin, targets ours, linear layers nothing."""

    def get_quant_method(self, layer, prefix):
        return None if layer is LINEAR else Marlin() if "decoder" in prefix else Ours()


@pytest.fixture
def asked(monkeypatch, caplog):
    """Prefixes of layers, the flags' runner -> warnings."""
    monkeypatch.setattr(built_layers, "is_fused_moe", lambda layer: layer is LAYER)
    monkeypatch.setattr(built_methods, "_SAID", set())

    def ask(*prefixes, runner="sm120_triton", layer=LAYER):
        monkeypatch.setattr(server_flags, "layer_runner", lambda _: runner)
        made = Configuration()
        built_methods.watch(made)
        with caplog.at_level(logging.WARNING, "sglang_sm120"):
            methods = [type(made.get_quant_method(layer, prefix)).__name__ for prefix in prefixes]
        assert methods == [type(Configuration().get_quant_method(layer, prefix)).__name__ for prefix in prefixes]
        return [record.getMessage() for record in caplog.records]

    return ask


def test_a_method_that_is_not_the_flags_is_told_once(asked):
    (said,) = asked("model.decoder.mlp.experts", "model.decoder.mlp.experts")
    assert said.startswith("The flags give the draft sm120_triton, and model.decoder.mlp.experts got Marlin: something")


def test_what_is_as_the_flags_say_is_not_told(asked):
    assert asked("model.layers.0.mlp.experts") == []
    assert asked("model.decoder.mlp.experts", runner="marlin") == []
    assert asked("model.decoder.eh_proj", layer=LINEAR) == []


def test_no_configuration_is_none_to_look_at():
    built_methods.watch(None)
    built_methods.watch(object())
