"""The command line and the demonstration as a user runs them."""

import json
import resource
import shutil
import struct
import sys

import pytest
from helpers import COMMAND, EAGLE, SCRIPTS, environment, run


def cpu_seconds():
    """Of all children that have ended: unlike the clock on the wall it does not count what else the machine does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.sglang
def test_plan_is_one_document_in_time(checkpoints):
    before = cpu_seconds()
    done = run(
        COMMAND, "plan", "--model", checkpoints["hybrid"], "--arch", "sm120", "--json", "--", "--tp", "2", *EAGLE
    )
    assert cpu_seconds() - before < 40
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert (document["schema"], document["simulated"], document["errors"]) == (1, True, [])
    assert document["target"]["kernel"] == "Triton NVFP4 (sm120_triton)"
    assert document["draft"]["kernel"] == "Triton MXFP4 (sm120_triton)"


@pytest.mark.sglang
def test_stock_fails_on_sm120_and_says_why(checkpoints):
    done = run(
        COMMAND, "plan", "--model", checkpoints["hybrid"], "--arch", "sm120", "--stock", "--", "--tp", "2", *EAGLE
    )
    assert done.returncode == 1
    assert "ERROR           target: FlashInfer TRT-LLM NVFP4 has kernels for SM10x only" in done.stdout
    assert "ERROR           draft: FlashInfer TRT-LLM MXFP4 has kernels for SM10x only" in done.stdout


@pytest.mark.sglang
def test_a_flag_that_sglang_refuses(checkpoints):
    done = run(COMMAND, "plan", "--model", checkpoints["hybrid"], "--json", "--", "--moe-runner-backend", "sm120_tritn")
    assert done.returncode == 1
    (error,) = json.loads(done.stdout)["errors"]
    assert "sm120_tritn" in error
    assert "sm120_triton" in error  # among the choices


@pytest.mark.sglang
@pytest.mark.parametrize("size", ["0", "-1"])
def test_a_tensor_parallel_size_that_is_none(checkpoints, size):
    done = run(COMMAND, "plan", "--model", checkpoints["hybrid"], "--json", "--", "--tp", size)
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["errors"] == [f"--tp is {size}; expected 1 or more"]
    assert document["memory"] is None


def test_the_small_checkpoint_says_what_it_is_for(checkpoints):
    """`--tp 2` and `--tp 4` of it are among the launches of test_launches.py."""
    said = " ".join(run(sys.executable, SCRIPTS / "checkpoints" / "tiny.py", "--help").stdout.split())
    assert "without options it is for launches with --tp 1 or 2, with EAGLE or without" in said
    assert "for --tp N give --intermediate a multiple of N x 128" in said
    assert "It has no DSpark draft" in said
    config = json.loads((checkpoints["hybrid"] / "config.json").read_text())
    assert config["moe_intermediate_size"] * config["n_shared_experts"] == 2 * 128


def test_a_second_model_is_refused(checkpoints):
    done = run(COMMAND, "plan", "--model", checkpoints["hybrid"], "--json", "--", "--model-path=/elsewhere")
    assert done.returncode == 1
    assert "--model-path after -- names a second model" in json.loads(done.stdout)["errors"][0]


def cut_header(model):
    file = model / "model-00002-of-00004.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def cut_config(model):
    (model / "config.json").write_text('{"model_type": "deepseek_v4", ')


def no_group_size(model):
    config = json.loads((model / "config.json").read_text())
    del config["quantization_config"]["group_size"]
    (model / "config.json").write_text(json.dumps(config))


def unknown_dtype(model):
    file = model / "model-00002-of-00004.safetensors"
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = data[8 : 8 + length].replace(b'"dtype":"U8"', b'"dtype":"U4"')
    file.write_bytes(data[:8] + header + data[8 + length :])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut_header, "model-00002-of-00004.safetensors"),
        (cut_config, "config.json"),
        (no_group_size, "quantization_config.group_size"),
        (unknown_dtype, "dtype U4"),
    ],
)
def test_a_damaged_checkpoint_is_named_at_once(checkpoints, tmp_path, damage, says):
    copy = shutil.copytree(checkpoints["hybrid"], tmp_path / "copy")
    damage(copy)
    done = run(COMMAND, "plan", "--model", copy, "--json")
    assert done.returncode == 1
    assert any(says in e for e in json.loads(done.stdout)["errors"])
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["paln"], "did you mean plan?"),
        (["plan", "--model", ".", "--arch", "sm75"], "sm120"),
        (["plan", "--model", ".", "--gpu-memory-gib", "0"], "positive whole number"),
        (["doctor", "--", "--tp", "2"], "takes nothing after --"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_is_2(arguments, says):
    done = run(COMMAND, *arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_doctor_without_a_gpu_explains_itself():
    done = run(COMMAND, "doctor", "--json", env=environment(CUDA_VISIBLE_DEVICES=""))
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert {p["status"] for p in document["patches"]} == {"not applicable"}
    assert document["packages"]["sglang"]


@pytest.fixture
def shadow(tmp_path):
    """A working directory in which `import sglang` finds something else."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("")
    return tmp_path


def test_doctor_finds_a_bad_setting_and_a_shadow(shadow):
    done = run(COMMAND, "doctor", "--json", env=environment(SGLANG_SM120_DISABLE="gate"), cwd=shadow)
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert any("SGLANG_SM120_DISABLE" in e for e in document["errors"])


def test_a_shadowed_sglang_is_a_fault_that_names_the_folder(checkpoints, shadow):
    done = run(COMMAND, "doctor", cwd=shadow)
    assert done.returncode == 1
    assert f"ERROR   {shadow / 'sglang'} shadows the installed sglang" in done.stdout
    assert "No fault found" not in done.stdout
    done = run(COMMAND, "plan", "--model", checkpoints["hybrid"], "--json", "--", "--tp", "2", cwd=shadow)
    (error,) = json.loads(done.stdout)["errors"]
    assert done.returncode == 1
    assert error.startswith("No module named 'sglang.srt'")
    assert error.endswith(f"{shadow / 'sglang'} shadows the installed sglang; start SGLang from another directory")


def test_selftest_on_cpu_writes_a_receipt_and_needs_no_home(tmp_path):
    file = tmp_path / "receipt.json"
    nowhere = environment(HOME="/proc/nowhere")
    done = run(COMMAND, "selftest", "--device", "cpu", "--json", "--receipt", file, env=nowhere)
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads(done.stdout)
    assert json.loads(file.read_text()) == document
    assert document["errors"] == []
    assert {r["activation"] for r in document["correctness"]} == {"bf16", "mxfp8"}
    assert all(0 < r["error"] <= r["bound"] and r["repeats_bits"] for r in document["correctness"])
    assert list(tmp_path.iterdir()) == [file]


def test_selftest_says_what_it_cannot_do(tmp_path):
    lost = run(COMMAND, "selftest", "--device", "cpu", "--receipt", tmp_path / "nowhere" / "r.json")
    assert lost.returncode == 1
    assert "--receipt" in lost.stderr
    assert "does not exist" in lost.stderr
    done = run(COMMAND, "selftest", "--device", "cuda", env=environment(CUDA_VISIBLE_DEVICES=""))
    assert done.returncode == 1
    assert "--device is 'cuda'; expected cpu" in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.sglang
def test_the_demonstration():
    before = cpu_seconds()
    done = run(sys.executable, SCRIPTS / "layers" / "demo.py", "--json", timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads(done.stdout)
    assert document["problems"] == []
    assert cpu_seconds() - before < 180  # 90 s on two cores
    assert len(document["stock"]["errors"]) == 2
    assert {a["method"] for a in document["layers"].values()} == {"Sm120Mxfp4MoEMethod"}
