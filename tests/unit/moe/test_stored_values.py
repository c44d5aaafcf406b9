"""Tensors as a checkpoint stores them: bytes bit for bit, numbers only where the parameter holds the same ones."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from sglang_sm120.moe import stored_values  # noqa: E402 - needs torch
from sglang_sm120.moe.ledger import ShardLedger  # noqa: E402

E8M0, E4M3, F32, U8, I8 = torch.float8_e8m0fnu, torch.float8_e4m3fn, torch.float32, torch.uint8, torch.int8


def all_bytes(dtype):
    return torch.arange(256, dtype=torch.int16).to(U8).view(dtype)


@pytest.mark.parametrize("wanted", [E8M0, E4M3, U8, I8])
@pytest.mark.parametrize("stored", [U8, I8])
def test_bytes_stay_bytes(stored, wanted):
    """112 must not become 134, which is what a numeric copy into e8m0 makes of it."""
    taken = stored_values.of_type(all_bytes(stored), wanted)
    assert taken.dtype == wanted
    assert torch.equal(taken.view(U8), all_bytes(U8))


@pytest.mark.parametrize("dtype", [E8M0, E4M3, F32, U8, I8])
def test_the_same_type_is_the_same_tensor(dtype):
    stored = torch.zeros(4, dtype=U8).view(dtype)
    assert stored_values.of_type(stored, dtype) is stored


@pytest.mark.parametrize("stored", [torch.float64, F32, torch.bfloat16])
def test_powers_of_two_are_e8m0(stored):
    powers = torch.tensor([2.0**-127, 2.0**-126, 0.5, 1, 2, 2.0**127], dtype=torch.float64).to(stored)
    assert stored_values.of_type(powers, E8M0).view(U8).tolist() == [0, 1, 126, 127, 128, 254]


def test_every_e4m3_value_survives_its_storage_as_floats():
    for stored in (F32, torch.bfloat16, torch.float16):
        taken = stored_values.of_type(all_bytes(E4M3).to(stored), E4M3).view(U8)
        finite = [b for b in range(256) if b & 0x7F != 0x7F]
        assert taken[finite].tolist() == finite
        assert all(taken[b] & 0x7F == 0x7F for b in (0x7F, 0xFF))


def test_multipliers_are_widened():
    assert stored_values.of_type(torch.tensor([1.5, 2.0**-8], dtype=torch.bfloat16), F32).tolist() == [1.5, 2.0**-8]


@pytest.mark.parametrize(
    ("stored", "wanted", "says"),
    [
        (torch.ones(2).to(E4M3), E8M0, r"is stored as float8_e4m3fn; expected powers of two from 2\^-127 to 2\^127"),
        (torch.ones(2).to(E8M0), E4M3, "is stored as float8_e8m0fnu; expected values of F8_E4M3"),
        (torch.tensor([1, 1.5]), E8M0, "is stored as float32 with the value 1.5; expected powers of two"),
        (torch.tensor([0.0]), E8M0, "with the value 0.0; expected powers of two"),
        (torch.tensor([-1.0]), E8M0, "with the value -1.0; expected"),
        (torch.tensor([2.0**-128]), E8M0, "with the value 2.9.*e-39; expected"),
        (torch.tensor([float("inf")]), E8M0, "with the value inf; expected"),
        (
            torch.tensor([1.0625]).bfloat16(),
            E4M3,
            "is stored as bfloat16 with the value 1.0625; expected values of F8_",
        ),
        (torch.tensor([449.0]), E4M3, "with the value 449.0; expected"),
        (torch.tensor([2.0**-10]), E4M3, "with the value 0.0009765625; expected"),
        (torch.tensor([0.1], dtype=torch.float64), F32, "is stored as float64 with the value 0.1; expected F32 values"),
        (torch.ones(2, dtype=U8), F32, "is stored as uint8; expected F32 values"),
        (torch.ones(2, dtype=torch.int32), E8M0, "is stored as int32; expected powers of two"),
        (torch.ones(2, dtype=torch.bfloat16), U8, r"is stored as bfloat16; expected packed e2m1 codes \(U8 or I8\)"),
        (torch.ones(2).to(E4M3), I8, "is stored as float8_e4m3fn; expected packed e2m1 codes"),
    ],
)
def test_what_is_no_exact_conversion_is_refused(stored, wanted, says):
    with pytest.raises(ValueError, match=says):
        stored_values.of_type(stored, wanted)


def wrapped(param, written, order, **more):
    def loader(_param, loaded, _name, shard_id, expert_id):
        order.append("write")
        written.append(loaded)

    ledger = ShardLedger(lambda: order.append("before"), prefix="model.decoder.mlp.experts", **more)
    return ledger, ledger.wrap(loader, "w13_weight_scale_inv")


def test_a_load_takes_bytes_and_names_what_it_refuses():
    written, order = [], []
    param = SimpleNamespace(dtype=E8M0)
    ledger, load = wrapped(param, written, order)
    load(param, torch.tensor([112], dtype=U8), "name", shard_id="w1", expert_id=5)
    assert written[0].view(U8).tolist() == [112]
    del order[:]
    with pytest.raises(
        ValueError, match=r"^model.decoder.mlp.experts: experts.7.w3.weight_scale_inv is stored as float32"
    ):
        load(param, torch.tensor([3.0]), "name", shard_id="w3", expert_id=7)
    assert order == []  # nothing moved
    assert "experts.7.w3.weight_scale_inv" in ledger.missing([7])


def test_shared_experts_that_sglang_converts_are_left_to_it():
    written = []
    param = SimpleNamespace(dtype=E8M0)
    _, load = wrapped(param, written, [], converts=lambda expert: expert == 8)
    load(param, torch.tensor([3.0]), "name", shard_id="w3", expert_id=8)
    assert written[0].tolist() == [3.0]
