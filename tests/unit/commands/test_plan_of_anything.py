"""Whatever a checkpoint's files hold, `plan --json` prints one document and no traceback.

The examples are drawn the same way on every run. SGLang is not asked: what it says of such files is tested elsewhere.
"""

import copy
import json
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_sm120 import cli
from sglang_sm120.checkpoint import headers_only
from sglang_sm120.commands.plan import command
from sglang_sm120.commands.plan.document import Answer, Sizes

EXAMPLES = settings(
    max_examples=1000,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SIZES = Sizes(tp_size=2, ep_size=1, moe_dp_size=1, pp_size=1, speculative_algorithm="EAGLE", mem_fraction_static=0.8)
ODD_NUMBERS = (0, -1, 1.5, 2**63, 10**400, float("nan"), float("inf"), -0.0)
ODD_TEXTS = ("", "x", "deepseek_v4", "NVFP4", "F8_E4M3", "../x", "\x00", "\ud800", "layers.0", "é" * 300)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(ODD_NUMBERS),
    st.sampled_from(ODD_TEXTS),
    st.builds(list),
    st.builds(dict),
    st.lists(st.sampled_from((None, 0, -1, 2**70, "x", [], 1.5)), max_size=3),
    st.dictionaries(st.sampled_from(("x", "quant_method", "hidden_size")), st.sampled_from((None, 1, "x")), max_size=2),
)
HYBRID = {"kind": "hybrid-nvfp4", "draft": "nextn"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A checkpoint as it should be: its configuration, its index, and its shards' headers."""
    directory = headers_only.write(tmp_path_factory.mktemp("whole"), **HYBRID)
    return {path.name: parts(path) for path in directory.iterdir() if path.suffix in (".json", ".safetensors")}


def parts(path):
    raw = path.read_bytes()
    return json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]] if path.suffix == ".safetensors" else raw)


def places(value, at=()):
    """Every place in a JSON value, the whole one too."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from places(below, (*at, key))


def changed(data, value):
    """The value with one to three places replaced, removed or added to."""
    value = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from([p for p in places(value) if p] or [("x",)]))
        inside = value
        for key in way:
            inside = inside[key]
        if not isinstance(inside, (dict, list)):
            return value
        change = data.draw(st.sampled_from(("replace", "remove", "add", "whole")))
        if change == "remove":
            del inside[last]
        elif change == "add" and isinstance(inside, dict):
            inside[data.draw(st.sampled_from((*ODD_TEXTS, "text_config", "layers.9.ffn.experts.0.w1.weight")))] = (
                data.draw(ODD)
            )
        elif change == "whole" and data.draw(st.integers(0, 9)) == 0:
            return data.draw(ODD)
        else:
            inside[last] = data.draw(ODD)
    return value


def text_of(data, value):
    """As bytes, now and then cut, nested or with foreign bytes in it."""
    raw = json.dumps(value).encode()
    damage = data.draw(st.sampled_from(("none",) * 6 + ("cut", "bytes", "deep", "mark", "wide")))
    at = data.draw(st.integers(0, len(raw)))
    return {
        "none": raw,
        "cut": raw[:at],
        "bytes": raw[:at] + b"\xff\x00{" + raw[at:],
        "deep": b'{"model_type": "deepseek_v4", "text_config": ' + b"[" * 100_000,
        "mark": b"\xef\xbb\xbf" + raw,
        "wide": raw.decode().encode("utf-16"),
    }[damage]


def put(directory, written, changes):
    """Write the checkpoint with some of its files' bytes exchanged; shards are holes behind their headers."""
    for name, value in written.items():
        raw = changes.get(name)
        if raw is None:
            raw = json.dumps(value).encode()
            raw = struct.pack("<Q", len(raw)) + raw if name.endswith(".safetensors") else raw
        (directory / name).write_bytes(raw)
        if name.endswith(".safetensors") and name not in changes:
            ends = [e["data_offsets"][1] for n, e in value.items() if n != "__metadata__"]
            with (directory / name).open("r+b") as f:
                f.truncate(len(raw) + max(ends))


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def require_a_document(directory, capsys):
    capsys.readouterr()
    status = cli.main(["plan", "--model", str(directory), "--arch", "sm120", "--json"])
    said = capsys.readouterr()
    document = json.loads(said.out, parse_constant=refuse)
    assert "Traceback" not in said.err
    assert status == bool(document["errors"])
    assert all("\n" not in error and len(error) < 2000 for error in document["errors"])
    assert cli.main(["plan", "--model", str(directory), "--arch", "sm120"]) == status  # and words


@pytest.fixture(autouse=True)
def sglang(monkeypatch):
    monkeypatch.setattr(command, "ask", lambda *_: Answer(sizes=SIZES))


@EXAMPLES
@given(data=st.data())
def test_any_configuration(data, written, capsys):
    raw = text_of(data, changed(data, written["config.json"]))
    with tempfile.TemporaryDirectory() as directory:
        put(Path(directory), written, {"config.json": raw})
        require_a_document(directory, capsys)


@EXAMPLES
@given(data=st.data())
def test_any_header_and_index(data, written, capsys):
    name = data.draw(st.sampled_from(sorted(n for n in written if n != "config.json")))
    raw = text_of(data, changed(data, written[name]))
    if name.endswith(".safetensors"):
        lengths = st.one_of(st.just(len(raw)), st.sampled_from((0, 1, 2**40, 2**64 - 1)))
        raw = struct.pack("<Q", data.draw(lengths)) + raw
    with tempfile.TemporaryDirectory() as directory:
        put(Path(directory), written, {name: raw[: data.draw(st.sampled_from((None, None, None, 0, 3, 9)))]})
        require_a_document(directory, capsys)
