"""What makes SGLang stop while it makes the layers, foreseen from the flags and the configuration."""

from types import SimpleNamespace

import pytest

from sglang_sm120.commands.plan import ineffective_settings
from sglang_sm120.upstream import server_flags


@pytest.fixture
def faults(monkeypatch):
    """The faults of a launch with this `moe_intermediate_size`, `n_shared_experts` and `--tp`."""

    def found(width, experts, tp, variables=None, **flags):
        text = SimpleNamespace(moe_intermediate_size=width, n_shared_experts=experts)
        monkeypatch.setattr(server_flags, "model_config", lambda _args: SimpleNamespace(hf_text_config=text))
        monkeypatch.setattr(server_flags, "quantization_block", lambda _args: (128, 128))
        monkeypatch.setattr(server_flags, "resolved", lambda _args, field: ({"tp_size": tp} | flags).get(field))
        return ineffective_settings.faults(variables or {}, None)

    return found


def test_a_shared_expert_cut_narrower_than_its_block(faults):
    assert "192 columns at --tp 16" in faults(3072, 1, 16)[0]
    assert faults(3072, 1, 8) == []
    assert faults(3072, 1, 16, {"SGLANG_SHARED_EXPERT_TP1": "1"}) == []
    assert faults(3072, 1, 16, moe_a2a_backend="deepep") == []


def test_a_configuration_that_names_no_shared_expert_has_none(faults):
    """SGLang takes null and 0 for none."""
    assert faults(3072, None, 16) == faults(3072, 0, 16) == []
