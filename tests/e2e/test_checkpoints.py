"""Checkpoints of `scripts/checkpoints`: their bytes, their numbers, and their draft in SGLang's own layer."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import run

from scripts.checkpoints import make

ROOT = Path(__file__).resolve().parents[2]


def tensors(directory):
    """Name -> array of one checkpoint, as bytes but for F32 and E8M0."""
    found = {}
    for file in directory.glob("*.safetensors"):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = (8 + size + offset for offset in entry["data_offsets"])
                dtype = np.float32 if entry["dtype"] == "F32" else np.uint8
                found[name] = np.frombuffer(data[begin:end], dtype), entry
    return found


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Format of the experts, and `dspark` -> directory."""
    root = tmp_path_factory.mktemp("models")
    shape = make.SMALL
    made = {kind: replace(shape, kind=kind) for kind in make.KINDS} | {"dspark": replace(shape, draft="dspark")}
    return {name: make.write(root / name, of) for name, of in made.items()}


@pytest.mark.parametrize(("name", "draft"), [("mxfp4", "nextn"), ("dspark", "dspark")])
def test_the_same_arguments_give_the_same_bytes(checkpoints, tmp_path, name, draft):
    shape = replace(make.SMALL, draft=draft)
    again = make.write(tmp_path / "again", shape, threads=1)
    for file in checkpoints[name].iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes(), file.name
    other = make.write(tmp_path / "other", replace(shape, seed=1))
    for file in other.glob("*.safetensors"):
        assert file.read_bytes() != (again / file.name).read_bytes(), file.name


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("kind", "nvfp4", "kind is 'nvfp4'; expected one of mxfp4, hybrid-nvfp4, fp8"),
        ("draft", "eagle", "draft is 'eagle'; expected one of nextn, dspark"),
        ("layers", 0, "layers is 0; expected at least 1"),
    ],
)
def test_a_shape_that_does_not_exist_is_refused(field, value, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        replace(make.SMALL, **{field: value})


@pytest.mark.parametrize("script", ["checkpoints/make.py", "checkpoints/tiny.py"])
@pytest.mark.parametrize(
    ("arguments", "says"), [(("--experts", 1), "experts is 1"), (("--seed", -1), "seed is -1"), ((), "File exists")]
)
def test_a_checkpoint_that_cannot_be_written_is_an_error_of_one_line(tmp_path, script, arguments, says):
    (tmp_path / "file").touch()
    done = run(sys.executable, ROOT / "scripts" / script, tmp_path / ("out" if arguments else "file"), *arguments)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("layers", [(), ("--layers", 3), ("--layers", 5)])
def test_a_dspark_checkpoint_has_the_layers_that_sglang_asks_for(tmp_path, layers):
    """SGLang ends on fewer than four: "DFlash layer selection requires num_target_layers >= 4"."""
    out = tmp_path / "out"
    done = run(
        sys.executable, ROOT / "scripts" / "checkpoints" / "make.py", out, "--small", "--draft", "dspark", *layers
    )
    if 3 in layers:
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].endswith("layers is 3; expected at least 4 with a dspark draft")
        assert not out.exists()
        return
    assert done.returncode == 0, done.stderr
    config = json.loads((out / "config.json").read_text())
    assert config["num_hidden_layers"] == (5 if layers else 4)
    assert config["dspark_target_layer_ids"] == list(range(config["num_hidden_layers"]))[-3:]


def e4m3(codes):
    """Values of e4m3 codes that are neither NaN nor subnormal."""
    codes = codes.astype(int)
    values = 2.0 ** (((codes >> 3) & 15) - 7) * (1 + (codes & 7) / 8) * np.where(codes & 0x80, -1, 1)
    return np.where(codes & 0x7F, values, 0)


def e2m1(packed):
    """Values of packed e2m1 codes, low nibble first."""
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    return np.concatenate([values, -values])[np.stack([packed & 15, packed >> 4], axis=-1)].reshape(-1)


def test_all_kinds_hold_the_same_numbers(checkpoints):
    mxfp4, hybrid, fp8 = (tensors(checkpoints[kind]) for kind in ("mxfp4", "hybrid-nvfp4", "fp8"))
    expert = "layers.1.ffn.experts.3.w2."
    assert np.array_equal(mxfp4[expert + "weight"][0], hybrid[expert + "weight"][0])
    per_32 = 2.0 ** (mxfp4[expert + "scale"][0].astype(int) - 127)
    per_16 = e4m3(hybrid[expert + "weight_scale"][0]) * hybrid[expert + "weight_scale_2"][0]
    np.testing.assert_allclose(np.repeat(per_32, 2), per_16, rtol=2**-24)  # two thirds as a float32, times 1.5
    assert np.log2(hybrid[expert + "weight_scale_2"][0]) % 1 != 0  # else a kernel may take the layer for MXFP4
    rows, columns = fp8[expert + "weight"][1]["shape"]
    blocks = 2.0 ** (fp8[expert + "scale"][0].astype(int) - 127).reshape(rows // 128, columns // 128)
    values = e4m3(fp8[expert + "weight"][0]).reshape(rows, columns) * np.kron(blocks, np.ones((128, 128)))
    assert np.array_equal((e2m1(mxfp4[expert + "weight"][0]) * np.repeat(per_32, 32)).reshape(rows, columns), values)
    assert len(np.unique(per_32)) == 2
    for name, (found, _) in mxfp4.items():
        if ".experts." not in name:
            assert np.array_equal(found, fp8[name][0], equal_nan=True), name
        if ".experts." not in name or name.startswith("mtp."):
            assert np.array_equal(found, hybrid[name][0], equal_nan=True), name


def test_the_dspark_draft_proposes_the_successor(checkpoints):
    """The Markov head's largest value for each token is at the token that the target's head prefers after it."""
    found, vocabulary = tensors(checkpoints["dspark"]), make.SMALL.vocabulary

    def rows(name):
        bits = found[name][0].view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(vocabulary, -1)

    after = (np.arange(vocabulary) + make.SUCCESSOR) % vocabulary
    logits = rows("mtp.1.markov_head.markov_w1.weight") @ rows("mtp.1.markov_head.markov_w2.weight").T
    assert np.mean(logits.argmax(1) == after) > 0.99
    head = rows("embed.weight") @ rows("head.weight").T
    assert head[np.arange(vocabulary), after].mean() > 2 * head.std()
    # Nothing follows the noise token; else the head is the one of a checkpoint with the other draft.
    other = tensors(checkpoints["mxfp4"])["head.weight"][0].reshape(vocabulary, -1)
    differs = (found["head.weight"][0].reshape(vocabulary, -1) != other).any(1)
    assert list(np.flatnonzero(differs)) == [after[vocabulary - 1]]


@pytest.mark.sglang
def test_the_draft_loads_through_sglang_and_matches_the_oracle(checkpoints):
    done = run(sys.executable, ROOT / "scripts" / "layers" / "draft_layer.py", checkpoints["hybrid-nvfp4"], "--tp", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    assert answer["method"] == "Sm120Mxfp4MoEMethod"
    assert answer["error"] <= 3e-3
