"""`sglang-sm120 tune`: what it measures for, what it keeps, and how it ends where it cannot work."""

import contextlib
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scripts.checkpoints import tiny
from sglang_sm120 import cli
from sglang_sm120.checkpoint import headers_only
from sglang_sm120.commands.tune import command as tune
from sglang_sm120.commands.tune import search, whole
from sglang_sm120.commands.tune.search import Comparison
from sglang_sm120.kernels.sm120 import tile_tables
from sglang_sm120.kernels.sm120.fp4_moe.host import schedule
from sglang_sm120.kernels.sm120.tile_tables import Machine, Shape
from sglang_sm120.moe.runner_tables import Layer

HERE = Machine("NVIDIA Test", 188, "3.8.0")
SHAPES = ["--shapes", "256,4096,1024,6"]


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU on which one candidate is a third faster; its list of asked token counts. The home is empty."""
    asked = []
    monkeypatch.setenv("SGLANG_SM120_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tune, "usable_device", lambda: (torch.device("cuda", 0), HERE))
    monkeypatch.setattr(schedule, "sm_count", lambda device: 188)
    monkeypatch.setattr(schedule, "is_sm90", lambda device: False)

    class Timer:
        def __init__(self, device, routing):
            assert routing in tile_tables.ROUTINGS

        def __call__(self, shape, tokens, tiles, rounds):
            asked.append(tokens)
            ratio = 0.66 if tiles and (tiles[0].rows, tiles[0].stages) == (32, 4) else 1.0
            return Comparison(30 * ratio, 30.0, ratio)

    monkeypatch.setattr(search, "GpuTimer", Timer)
    return asked


@pytest.fixture
def table(tmp_path):
    return tmp_path / "home" / HERE.file_name


def test_it_measures_and_keeps_a_table_that_launches_use(gpu, table, capsys):
    assert cli.main(["tune", "--only", "tiles", *SHAPES, "--tokens", "1,4"]) == 0
    text = capsys.readouterr().out
    assert "Launches on this machine use this table." in text
    assert "256,4096,1024,6    4 32x8/4/1/1" in text
    assert max(len(line) for line in text.splitlines() if line.startswith("  ")) <= 60
    assert set(tile_tables.read(table, HERE).tiles()) == {(Shape(256, 4096, 1024, 6), t) for t in (1, 4)}


def test_again_measures_only_what_is_missing(gpu, table, capsys):
    cli.main(["tune", "--only", "tiles", *SHAPES, "--tokens", "1"])
    gpu.clear()
    assert cli.main(["tune", "--only", "tiles", *SHAPES, "--tokens", "1,2", "--json"]) == 0
    assert set(gpu) == {2}
    out = capsys.readouterr()
    assert "1 token counts are done" in out.err
    document = json.loads(out.out[out.out.index("{") :])
    assert (document["schema"], document["complete"], len(document["entries"])) == (1, True, 2)
    gpu.clear()
    cli.main(["tune", "--only", "tiles", *SHAPES, "--tokens", "1", "--routing", "speculative"])
    assert set(gpu) == {1}  # another routing is another measurement
    assert len(tile_tables.read(table, HERE).entries) == 2


@pytest.mark.parametrize("swallowed", [(), (KeyboardInterrupt,)], ids=["seen", "swallowed until the bar moves"])
def test_interrupted_it_keeps_what_it_has_and_says_so(gpu, table, monkeypatch, capsys, swallowed):
    real = search.GpuTimer.__call__

    def interrupted(self, shape, tokens, tiles, rounds):
        if tokens == 4:
            with contextlib.suppress(*swallowed):
                signal.raise_signal(signal.SIGINT)
        return real(self, shape, tokens, tiles, rounds)

    monkeypatch.setattr(search.GpuTimer, "__call__", interrupted)
    assert cli.main(["tune", "--only", "tiles", *SHAPES, "--tokens", "1,4"]) == 130
    assert "what was measured is kept" in capsys.readouterr().err
    assert [row["tokens"] for row in tile_tables.read(table, HERE).entries] == [1]
    assert [p.name for p in table.parent.iterdir()] == [table.name]


def test_out_of_time_it_says_how_to_go_on(gpu, capsys):
    assert cli.main(["tune", "--only", "tiles", *SHAPES, "--minutes", "0.0000001"]) == 0
    assert "The time is spent; the same command goes on from here." in capsys.readouterr().out


def test_a_stale_or_broken_table_is_replaced_and_told(gpu, table, capsys):
    for text in ("{", json.dumps({"schema": 5, "overlay": "9.9"})):
        table.parent.mkdir(exist_ok=True)
        table.write_text(text)
        assert cli.main(["tune", "--only", "tiles", "--check"]) == 1
        assert "ERROR   launches ignore the table" in capsys.readouterr().out
        assert cli.main(["tune", "--only", "tiles", *SHAPES, "--tokens", "1"]) == 0
        assert "is replaced: " in capsys.readouterr().err
        assert cli.main(["tune", "--only", "tiles", "--check"]) == 0
        assert "Launches on this machine use this table." in capsys.readouterr().out


def test_a_file_that_is_no_table_is_not_overwritten(gpu, tmp_path, capsys):
    file = tmp_path / "thesis.txt"
    file.write_text("years of work")
    assert cli.main(["tune", "--only", "tiles", *SHAPES, "--out", str(file)]) == 1
    assert "--out" in capsys.readouterr().err
    assert file.read_text() == "years of work"


def test_a_table_elsewhere_is_not_called_used(gpu, tmp_path, capsys):
    assert cli.main(["tune", "--only", "tiles", *SHAPES, "--tokens", "1", "--out", str(tmp_path / "mine.json")]) == 0
    assert "Launches" not in capsys.readouterr().out
    assert (tmp_path / "mine.json").is_file()


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null"])
def test_a_home_that_cannot_be_written_is_told_before_anything_is_measured(gpu, monkeypatch, capsys, home):
    monkeypatch.setenv("SGLANG_SM120_HOME", home)
    assert cli.main(["tune", "--only", "tiles", *SHAPES]) == 1
    assert gpu == []
    (line,) = capsys.readouterr().err.splitlines()
    assert home in line
    assert "--out" in line


def test_no_home_at_all(gpu, monkeypatch, capsys):
    def none():
        raise RuntimeError("no home")

    monkeypatch.delenv("SGLANG_SM120_HOME")
    monkeypatch.setattr("pathlib.Path.home", none)
    assert cli.main(["tune", "--only", "tiles", *SHAPES]) == 1
    assert "there is no home directory: HOME is unset" in capsys.readouterr().err
    assert cli.main(["tune", "--only", "tiles", "--check"]) == 1
    assert "HOME is unset" in capsys.readouterr().out


def test_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["tune", "--only", "tiles", *SHAPES]) == 1
    assert capsys.readouterr().err == f"sglang-sm120: {tune.NO_GPU}\n"
    assert cli.main(["tune", "--only", "tiles", "--check"]) == 0
    assert "so no table is used" in capsys.readouterr().out


def test_check_says_which_shapes_are_missing(gpu, capsys):
    assert cli.main(["tune", "--only", "tiles", "--check"]) == 0
    assert "there is no table for this machine" in capsys.readouterr().out
    cli.main(["tune", "--only", "tiles", *SHAPES, "--tokens", "1"])
    assert cli.main(["tune", "--only", "tiles", "--check", "--shapes", "256,4096,1024,6", "384,5120,576,6"]) == 0
    assert "nothing was measured for 384,5120,576,6" in capsys.readouterr().out


def test_many_tokens_have_no_tiles_to_choose(gpu, capsys):
    assert cli.main(["tune", "--only", "tiles", *SHAPES, "--tokens", "1,4096"]) == 0
    assert set(gpu) == {1}
    assert "with 4096 tokens runs the kernel for many tokens" in capsys.readouterr().err


@pytest.fixture
def model(tmp_path):
    return tiny.write(tmp_path / "model")


def test_shapes_come_from_the_checkpoint(model):
    config = json.loads((model / "config.json").read_text())
    names = ("n_routed_experts", "hidden_size", "moe_intermediate_size")
    experts, hidden, inter = (config[name] for name in names)
    draft = Shape(experts, hidden, inter // 2, config["num_experts_per_tok"])
    target = replace(draft, format="nvfp4")
    assert tune.shapes_of(model, 2) == [target, draft]
    whole = replace(draft, experts=experts // 2, inter=inter)  # of a rank under expert parallelism
    assert tune.shapes_of(model, 2, 2) == [replace(whole, format="nvfp4"), whole]
    (model / "config.json").write_text(json.dumps(config | {"dspark_n_routed_experts": 2}))
    assert tune.shapes_of(model, 2)[1].experts == 2


def test_the_layers_of_a_checkpoint_are_built_in_their_roles(model):
    target, draft = whole.jobs_of([], model, 2, 1)
    assert (target.layer, target.role, target.model) == (Layer("nvfp4", 8, 512, 128, 2, 2), "target", model)
    assert (draft.layer, draft.role, draft.model) == (Layer("mxfp4", 8, 512, 128, 2, 2), "draft", model)
    [other] = whole.jobs_of([Shape(4, 512, 64, 2)], None, 2, 2)
    assert (other.layer, other.role, other.model) == (Layer("mxfp4", 8, 512, 64, 2, 2, 2), "target", None)


def test_a_draft_that_eagle_cannot_load_is_measured_in_a_checkpoint_of_its_own(tmp_path):
    """The gate refuses EAGLE with DSpark's stages, so every runner of the draft's layer would be refused."""
    stages = headers_only.write(tmp_path / "stages", "hybrid-nvfp4", "dspark", layers=2, whole=True)
    target, draft = whole.jobs_of([], stages, 2, 1)
    assert (target.layer.format, target.model) == ("nvfp4", stages)
    assert (draft.layer, draft.role, draft.model) == (Layer("mxfp4", 256, 4096, 1024, 6, 2), "target", None)


def test_an_mxfp4_draft_beside_an_fp8_target_is_measured_alone(tmp_path):
    """The log of such a launch names this command."""
    model = headers_only.write(tmp_path / "fp8", "fp8", "nextn", "mxfp4-draft", layers=2, whole=True)
    [draft] = whole.jobs_of([], model, 2, 1)
    assert (draft.layer, draft.role, draft.model) == (Layer("mxfp4", 256, 4096, 1024, 6, 2), "draft", model)


def test_without_a_gpu_one_line_says_so(capsys):
    for only in ([], ["--only", "runners"], ["--only", "tiles"]):
        assert cli.main(["tune", *SHAPES, *only]) == 1
        out = capsys.readouterr()
        assert out.err == "sglang-sm120: tune measures, so it needs a CUDA GPU, and none is usable here\n"
    assert cli.main(["tune", "--check"]) == 0
    assert "note    no table of runners is used: " in capsys.readouterr().out


def test_a_checkpoint_that_cannot_be_tuned(gpu, model, capsys):
    assert cli.main(["tune", "--only", "tiles", "--model-path", str(model), "--tp", "3"]) == 1
    assert "--tp is 3; expected" in capsys.readouterr().err
    assert cli.main(["tune", "--only", "tiles", "--model-path", str(model / "config.json")]) == 1
    assert "is a file" in capsys.readouterr().err
    assert cli.main(["tune", "--only", "tiles", "--model-path", "/nowhere"]) == 1
    assert "/nowhere/config.json does not exist" in capsys.readouterr().err
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert cli.main(["tune", "--only", "tiles", "--model-path", str(model)]) == 1
    assert "has no MXFP4 or NVFP4 experts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give --model-path DIR or --shapes"),
        (["--shapes", "1,2"], "'1,2' is not EXPERTS,HIDDEN,INTER,TOP_K"),
        (["--shapes", "256,4096,512,6,fp8"], "with mxfp4 or nvfp4 after it"),
        (["--shapes", "8,100,64,2"], "multiples of 32"),
        (["--shapes", "4,64,64,6"], "TOP_K must be at most EXPERTS"),
        ([*SHAPES, "--tokens", "3"], "powers of two"),
        ([*SHAPES, "--minutes", "0"], "positive number of minutes"),
        ([*SHAPES, "--minutes", "nan"], "positive number of minutes"),
        ([*SHAPES, "--routing", "wild"], "speculative"),
    ],
)
def test_wrong_usage(arguments, says, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["tune", "--only", "tiles", *arguments])
    assert end.value.code == 2
    assert says in capsys.readouterr().err


class Terminal:
    def __init__(self, is_terminal):
        self.text, self.is_terminal = "", is_terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return self.is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_bar_has_the_time_left_and_fits(monkeypatch, is_terminal):
    now = [0.0]
    screen = Terminal(is_terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    bar = tune.Bar(600, clock=lambda: now[0])
    shape = Shape(384, 7168, 3072, 6)
    for done in range(8):
        for share in (0.0, 0.5):
            bar(search.Progress(done, 8, share, shape, 2**done, 7))
            now[0] += 10
    bar.end()
    lines = screen.text.replace("\r", "\n").strip("\n").split("\n")
    assert len(lines) == (16 if is_terminal else 8)
    assert "8 of 8" in lines[-1]
    left = [line.split()[-2] for line in lines]
    assert left[0] == "10:00"
    assert left[-1] in ("0:10", "0:20")
    if is_terminal:
        assert max(map(len, lines)) < 60


def test_no_path_of_the_user_in_what_is_printed(gpu, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    cli.main(["tune", "--only", "tiles", *SHAPES, "--tokens", "1"])
    assert "~/home/tiles-" in capsys.readouterr().out
    assert Path.home() == tmp_path
