"""Shards that are cut, absent or surplus, with an index and without."""

import json

import pytest
from field_checkpoints import whole, write

from sglang_sm120.checkpoint import inspection
from sglang_sm120.checkpoint.inspection import CheckpointError

NATIVE = whole("mxfp4")


def shards(directory):
    return sorted(directory.glob("*.safetensors"))


def empty(file):
    file.write_bytes(b"")


def halve(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def one_byte_less(file):
    file.write_bytes(file.read_bytes()[:-1])


def pointer(file):
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")


DAMAGE = {
    empty: "does not begin with a safetensors header; download it again",
    halve: "is cut short: its header promises ",
    one_byte_less: "is cut short: its header promises ",
    pointer: "does not begin with a safetensors header; download it again",
}


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("number", [0, 2, -1])
@pytest.mark.parametrize(("damage", "says"), DAMAGE.items(), ids=[d.__name__ for d in DAMAGE])
def test_a_damaged_shard_is_named_wherever_it_is(tmp_path, damage, says, number, index):
    file = shards(write(tmp_path, NATIVE, "mxfp4", index=index))[number]
    damage(file)
    with pytest.raises(CheckpointError, match=f"{file.name} {says}"):
        inspection.read(tmp_path)


@pytest.mark.parametrize("number", [0, 2, -1])
@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
def test_an_absent_shard_is_named(tmp_path, number, index):
    file = shards(write(tmp_path, NATIVE, "mxfp4", index=index))[number]
    file.unlink()
    says = (
        "cannot be read: no such file; download it again" if index else "is absent, which .* counts; download it again"
    )
    with pytest.raises(CheckpointError, match=f"{file.name} {says}"):
        inspection.read(tmp_path)


def test_headers_alone_are_whole(tmp_path):
    weights = inspection.read(write(tmp_path, NATIVE, "mxfp4")).weights
    for file in shards(tmp_path):
        data = file.read_bytes()
        file.write_bytes(data[: 8 + int.from_bytes(data[:8], "little")])
    found = inspection.read(tmp_path)
    assert found.checkpoint.problems == ()
    assert found.weights == weights


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"anything"])
def test_what_the_index_does_not_name_is_not_read(tmp_path, content):
    """Left behind by an interrupted download, or of another format; SGLang reads the index's shards."""
    weights = inspection.read(write(tmp_path, NATIVE, "mxfp4")).weights
    (tmp_path / "old-00001.safetensors").write_bytes(shards(tmp_path)[1].read_bytes())
    (tmp_path / "stray.safetensors").write_bytes(content)
    assert inspection.read(tmp_path).weights == weights


def test_of_two_tensors_of_a_name_the_one_counts_that_the_index_means(tmp_path):
    write(tmp_path, NATIVE, "mxfp4")
    expected = inspection.read(tmp_path)
    first, last = shards(tmp_path)[0], shards(tmp_path)[-1]
    name = "mtp.0.ffn.experts.0.w1.weight"
    text = first.read_bytes()[8:]
    header = {name: {"dtype": "BF16", "shape": [4, 4], "data_offsets": [0, 32]}}
    header |= json.JSONDecoder().raw_decode(text.decode("latin-1"))[0]
    data = json.dumps(header).encode()
    first.write_bytes(len(data).to_bytes(8, "little") + data)
    assert name.encode() in last.read_bytes()
    found = inspection.read(tmp_path)
    assert found.draft_problems("EAGLE") == []
    assert found.weights == expected.weights


def test_each_shard_is_read_once(tmp_path, monkeypatch):
    from sglang_sm120.checkpoint import headers

    write(tmp_path, NATIVE, "mxfp4")
    asked, read = [], headers.tensor_headers
    monkeypatch.setattr(headers, "tensor_headers", lambda file: asked.append(file) or read(file))
    found = inspection.read(tmp_path)
    assert found.weights is not None
    assert found.draft_problems("EAGLE") == []
    assert found.draft_kind == "mxfp4"
    assert sorted(asked) == shards(tmp_path)


@pytest.mark.parametrize("offsets", ["[0]", "[5, 1]", '["0", "8"]', "[-8, 0]", "null", "[0.0, 8.0]", "[true, 8]"])
def test_offsets_that_are_none(tmp_path, offsets):
    file = shards(write(tmp_path, NATIVE, "mxfp4"))[0]
    text = f'{{"embed.weight": {{"dtype": "BF16", "shape": [4], "data_offsets": {offsets}}}}}'.encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 8)
    with pytest.raises(CheckpointError, match=f"safetensors header of .*{file.name} is cut short or damaged"):
        inspection.read(tmp_path)
