"""Flags of users' reports whose launches failed late or with words that led nowhere: what `plan` says of them now."""

import json
import sys

import pytest
from helpers import CHILDREN, COMMAND, EAGLE, environment, run

from sglang_sm120.moe.runners import DRAFT_FLAG, TARGET_FLAG

pytestmark = pytest.mark.sglang

A2A, DRAFT_A2A = "--moe-a2a-backend", "--speculative-moe-a2a-backend"
ATTENTION_DP = ["--tp", "2", "--enable-dp-attention", "--dp-size", "2", "--ep-size", "2"]
QUANTIZATION = "--speculative-draft-model-quantization"
OFFLOAD = ["--offload-group-size", "2", "--offload-num-in-group", "1"]
NOT_READ = "brings a dispatch of its own, which sm120_triton does not read"

# id, checkpoint, flags, environment, what the error says; None where the launch works
ROWS = [
    ("a2a target", "hybrid", [*ATTENTION_DP, A2A, "flashinfer"], {}, None),
    ("a2a cured", "hybrid", [*ATTENTION_DP, A2A, "flashinfer", *EAGLE, DRAFT_A2A, "none"], {}, None),
    ("dp alone", "hybrid", [*ATTENTION_DP, *EAGLE], {}, None),
    ("a2a eagle", "hybrid", [*ATTENTION_DP, A2A, "flashinfer", *EAGLE], {}, f"{NOT_READ}; add {DRAFT_A2A} none"),
    ("a2a draft", "hybrid", [*ATTENTION_DP, *EAGLE, DRAFT_A2A, "deepep"], {}, f"{DRAFT_A2A} deepep {NOT_READ}"),
    ("deepep", "native", ["--tp", "2", A2A, "deepep"], {}, None),
    ("deepep ours", "native", ["--tp", "2", A2A, "deepep", TARGET_FLAG, "sm120_triton"], {}, f"deepep {NOT_READ}; le"),
    ("deepep NVFP4", "hybrid", ["--tp", "2", A2A, "deepep"], {}, f"leave {A2A} out, or give flashinfer"),
    ("deepep draft", "native", ["--tp", "2", A2A, "deepep", *EAGLE, DRAFT_FLAG, "sm120_triton"], {}, "add --specul"),
    ("no topk", "hybrid", ["--tp", "2", *EAGLE[:2]], {}, "(--speculative-eagle-topk is not given; --speculative"),
    ("topk", "hybrid", ["--tp", "2", *EAGLE, "--speculative-eagle-topk", "4"], {}, "(--speculative-eagle-topk 4; --"),
    ("draft's bits", "hybrid", ["--tp", "2", *EAGLE, QUANTIZATION, "modelopt_fp4"], {}, f"{QUANTIZATION} modelopt_fp"),
    ("native's", "native", ["--tp", "2", *EAGLE, QUANTIZATION, "modelopt_fp4"], {}, f"{QUANTIZATION} modelopt_fp4 is"),
    ("fp8 draft", "hybrid", ["--tp", "2", *EAGLE, QUANTIZATION, "fp8"], {}, None),
    ("groups", "native", ["--tp", "2", *OFFLOAD, TARGET_FLAG, "sm120_triton"], {}, "--offload-group-size moves param"),
    ("groups, stock", "native", ["--tp", "2", *OFFLOAD], {}, None),
    ("mistyped", "hybrid", ["--tp", "2", *EAGLE, "--speculative-draft-model-path", "/no/such"], {}, "/no/such is no d"),
    ("abbreviated", "hybrid", ["--tp", "2", "--model-pat", "/elsewhere"], {}, "the flags have model-pat /elsewhere"),
]  # fmt: skip


@pytest.fixture(scope="module")
def answers(probe, checkpoints):
    launches = [{"model": str(checkpoints[c]), "flags": flags, "env": env} for _, c, flags, env, _ in ROWS]
    return dict(zip([row[0] for row in ROWS], probe("sm120", launches), strict=True))


@pytest.mark.parametrize(("name", "says"), [(row[0], row[4]) for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_launch(answers, name, says):
    errors = answers[name]["errors"]
    if says is None:
        assert errors == []
    else:
        assert len(errors) == 1
        assert says in errors[0]
        assert "tp_group" not in errors[0]


def test_what_is_not_simulated_is_told(answers):
    for name, backend in (("a2a target", "flashinfer"), ("a2a cured", "flashinfer"), ("deepep", "deepep")):
        assert any(f"not simulated: the dispatch of {A2A} {backend}" in w for w in answers[name]["warnings"])
    assert not any("not simulated" in w for w in answers["dp alone"]["warnings"])
    assert (answers["a2a target"]["target"]["method"], answers["a2a cured"]["draft"]["method"]) == (
        "ModelOptNvFp4FusedMoEMethod",
        "Sm120Mxfp4MoEMethod",
    )


def test_a_variable_that_undoes_a_decision_is_named_and_no_plugin(probe, checkpoints):
    launch = {
        "model": str(checkpoints["hybrid"]),
        "flags": ["--tp", "2", *EAGLE],
        "env": {"SGLANG_DSV4_FP4_EXPERTS": "0"},
    }
    (answer,) = probe("sm120", [launch])
    undone = answer["draft"]["undone"]
    assert "decided on sm120_triton, and SGLang built Fp8MoEMethod: SGLANG_DSV4_FP4_EXPERTS=0 stands in" in undone
    assert "plugin" not in undone


def test_a_sitecustomize_that_gives_the_draft_marlin_is_told_by_what_it_built(checkpoints, tmp_path):
    """It wraps the method's place when SGLang is imported, so the overlay's replacement lies below it."""
    (tmp_path / "sitecustomize.py").write_text((CHILDREN / "marlin_drafts.py").read_text())
    env = environment(PYTHONPATH=str(tmp_path))
    done = run(COMMAND, "plan", "--model", checkpoints["hybrid"], "--json", "--", "--tp", "2", *EAGLE, env=env)
    (error,) = json.loads(done.stdout)["errors"]
    assert "SGLang built Mxfp4MarlinMoEMethod" in error
    assert "sitecustomize" in error
    assert "Pass another" not in error


LAUNCH = """
import logging, sys
from sglang_sm120.commands.plan import child, layers, one_rank, simulate
simulate.install("sm120", 96)
from sglang.srt.plugins import load_plugins
load_plugins()
server_args = child.resolve(sys.argv[1:])
logging.getLogger("sglang_sm120").addHandler(logging.StreamHandler(sys.stderr))
one_rank.publish_as_scheduler(server_args)
layers.draft(server_args, "EAGLE", sys.argv[2])
"""


def test_a_launch_with_that_sitecustomize_warns(checkpoints, tmp_path):
    (tmp_path / "sitecustomize.py").write_text((CHILDREN / "marlin_drafts.py").read_text())
    arguments = ["--model-path", checkpoints["hybrid"], "--tp", "2", *EAGLE]
    said = "The flags give the draft sm120_triton, and model.decoder.mlp.experts got Mxfp4MarlinMoEMethod: something"
    for env, warned in ((environment(PYTHONPATH=str(tmp_path)), True), (environment(), False)):
        done = run(sys.executable, "-c", LAUNCH, *arguments, env=env)
        assert done.returncode == 0, done.stderr[-2000:]
        assert (said in done.stderr) is warned


@pytest.fixture
def planned(checkpoints, tmp_path):
    """Text of a YAML file, further flags -> the document of `plan` with it."""

    def plan(text, *flags, model=checkpoints["hybrid"], name="x.yaml"):
        (tmp_path / name).write_text(text)
        done = run(COMMAND, "plan", "--model", model, "--json", "--", "--config", tmp_path / name, *flags)
        assert "Traceback" not in done.stdout
        return json.loads(done.stdout)

    return plan


def test_a_file_that_serves_another_model_is_refused(planned, checkpoints):
    for key in ("model-path", "model"):
        (error,) = planned(f"{key}: /elsewhere\ntp: 2\n")["errors"]
        assert f"x.yaml has {key} /elsewhere, which a launch would serve" in error


def test_a_file_is_judged_as_the_command_line_is(planned, checkpoints):
    assert planned(f"model-path: {checkpoints['hybrid']}\ntp: 2\n")["errors"] == []
    assert planned("tp: 0\n")["errors"] == ["--tp is 0; expected 1 or more"]
    (error,) = planned("tp: 2\nmoe-runner-backend: triton\n")["errors"]
    assert error.startswith(f"{TARGET_FLAG} triton cannot run here")
    (error,) = planned("tp: 2\nspeculative-algorithm: EAGLEE\n")["errors"]
    assert "--speculative-algorithm EAGLEE" in error


@pytest.mark.parametrize(
    ("text", "name"), [("- a\n- b\n", "x.yaml"), ("tp: [", "x.yaml"), ("tp: 2", "x.txt"), ("no-such-flag: 1", "x.yml")]
)
def test_a_file_that_is_none_is_an_error_and_a_document(planned, text, name):
    assert len(planned(text, name=name)["errors"]) == 1


def test_a_file_in_one_word_is_not_read_by_sglang(checkpoints):
    done = run(COMMAND, "plan", "--model", checkpoints["hybrid"], "--json", "--", "--config=/x.yaml")
    assert "write two words, --config /x.yaml" in json.loads(done.stdout)["errors"][0]
