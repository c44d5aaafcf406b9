"""NVFP4 experts with values that no checkpoint should have, through the method's own loaders."""

import json
import sys

import pytest
from helpers import CHILDREN, ROOT, environment, run

pytestmark = pytest.mark.sglang

LAYER, DRAFT = "model.layers.0.mlp.experts: ", "model.decoder.mlp.experts: "
UNFILLED = "has values that were never loaded or are NaN"
MULTIPLIER = "expected a finite multiplier above 0 and up to 2**100"
SCALE = "expected e4m3 from 0 to 448"


@pytest.fixture(scope="module")
def outcomes(checkpoints):
    env = environment(PYTHONPATH=str(ROOT))
    done = run(sys.executable, CHILDREN / "method_checks.py", checkpoints["hybrid"], "values", env=env)
    assert done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout)["values"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("NaN scale in w1", f"w13_weight_scale of local expert 2 {UNFILLED}"),
        ("NaN scale in w2", f"w2_weight_scale of local expert 2 {UNFILLED}"),
        ("negative NaN scale in w1", f"w13_weight_scale of expert 2 holds NaN (byte 0xff), {SCALE}"),
        ("negative NaN scale in w2", f"w2_weight_scale of expert 2 holds NaN (byte 0xff), {SCALE}"),
        ("negative scale in w1", f"w13_weight_scale of expert 2 holds a negative value (byte 0xb8), {SCALE}"),
        ("negative scale in w2", f"w2_weight_scale of expert 2 holds a negative value (byte 0xb8), {SCALE}"),
        ("zero multiplier of w3", f"w13_weight_scale_2 of expert 1 is 0.0, {MULTIPLIER}"),
        ("zero multiplier of w2", f"w2_weight_scale_2 of expert 1 is 0.0, {MULTIPLIER}"),
        ("NaN multiplier of w3", f"w13_weight_scale_2 of local expert 1 {UNFILLED}"),
        ("NaN multiplier of w2", f"w2_weight_scale_2 of local expert 1 {UNFILLED}"),
        ("infinite multiplier of w3", f"w13_weight_scale_2 of expert 1 is inf, {MULTIPLIER}"),
        ("infinite multiplier of w2", f"w2_weight_scale_2 of expert 1 is inf, {MULTIPLIER}"),
        ("negative multiplier of w3", f"w13_weight_scale_2 of expert 1 is -0.5, {MULTIPLIER}"),
        ("negative multiplier of w2", f"w2_weight_scale_2 of expert 1 is -0.5, {MULTIPLIER}"),
        (
            "missing weight",
            "the checkpoint did not deliver experts.3.w3.weight; is it complete, and are its",
        ),
        ("missing weight_scale", "the checkpoint did not deliver experts.3.w3.weight_scale; is it complete, and"),
        ("missing weight_scale_2", "the checkpoint did not deliver experts.3.w3.weight_scale_2; is it complete, and"),
        ("e8m0 scales in NVFP4", "experts.0.w1.weight_scale is stored as float8_e8m0fnu; expected values of F8_E4M3"),
        (
            "odd scales in NVFP4",
            "experts.0.w1.weight_scale is stored as float32 with the value 1.0625; expected",
        ),
        ("NaN in an update", f"w13_weight_scale of expert 2 holds NaN (byte 0xff), {SCALE}"),
        ("used after it", "used before process_weights_after_loading; a weight update of this layer has begun"),
        ("released nvfp4, used half-way", "used before process_weights_after_loading"),
        ("released nvfp4 cast, used half-way", "used before process_weights_after_loading"),
    ],
)
def test_refused(outcomes, name, says):
    assert outcomes[name].startswith(LAYER + says)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("e4m3 scales in MXFP4", "experts.0.w1.weight_scale_inv is stored as float8_e4m3fn; expected powers of two"),
        (
            "odd scales in MXFP4",
            "experts.0.w1.weight_scale_inv is stored as float32 with the value 1.5; expected",
        ),
    ],
)
def test_refused_of_the_draft(outcomes, name, says):
    assert outcomes[name].startswith(DRAFT + says)


@pytest.mark.parametrize(
    "name",
    [
        "zero scales",
        "scales stored as bytes",
        "scales stored as floats",
        "repaired",
        "released nvfp4, written in requests",
        "released nvfp4 cast, written in requests",
    ],
)
def test_right(outcomes, name):
    """`input_scale` was delivered in none of these."""
    assert outcomes[name] <= 3e-3


def test_mxfp8_is_for_mxfp4_layers_and_said_once(outcomes):
    """Two layers of the target, and the draft's."""
    activations, said = outcomes["mxfp8"]
    assert activations == ["bf16", "bf16", "mxfp8"]
    assert said == ["SGLANG_SM120_ACTIVATION=mxfp8 applies to MXFP4 layers; NVFP4 ones keep bf16 activations"]
