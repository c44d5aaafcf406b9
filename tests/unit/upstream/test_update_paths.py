"""Which load formats and flags the kernel's prepared weights can live with."""

from types import SimpleNamespace

import pytest

from sglang_sm120.upstream import update_paths

PLAIN = SimpleNamespace(cpu_offload_gb=0, offload_group_size=-1, weight_cache_mode="off", enable_lora=None)


@pytest.mark.parametrize(
    ("load_format", "says"),
    [
        ("auto", None),
        ("dummy", None),
        (SimpleNamespace(value="safetensors"), None),
        ("sharded_state", "writes parameters after they were prepared"),
        (SimpleNamespace(value="remote"), "writes parameters after they were prepared"),
        ("tomorrow", "is not among the load formats that were looked at"),
        (type("Loader", (), {}), "is not among the load formats that were looked at"),
    ],
)
def test_load_formats(load_format, says):
    assert update_paths.load_format_problem(load_format) == says


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({}, []),
        ({"cpu_offload_gb": 8}, ["--cpu-offload-gb"]),
        ({"offload_group_size": 2}, ["--offload-group-size"]),
        ({"kt_weight_path": "/experts"}, ["--kt-weight-path"]),
        ({"weight_cache_mode": "attach"}, ["--weight-cache-mode"]),
        ({"startup_weight_load_mode": "overlap"}, ["--startup-weight-load-mode"]),
        (
            {"remote_instance_weight_loader_start_seed_via_transfer_engine": True},
            ["--remote-instance-weight-loader-start-seed-via-transfer-engine"],
        ),
        ({"enable_lora": True}, ["--enable-lora"]),
        ({"lora_paths": ["a=/b"]}, ["--enable-lora"]),
        ({"enable_lora": True, "lora_target_modules": ["gate_up_proj", "down_proj"]}, ["--enable-lora"]),
        ({"enable_lora": True, "lora_target_modules": ["q_proj"]}, []),
        ({"enable_eplb": True, "ep_num_redundant_experts": 8, "enable_memory_saver": True}, []),
    ],
)
def test_flags(flags, named):
    view = SimpleNamespace(**vars(PLAIN) | flags)
    assert [flag.name for flag in update_paths.FLAGS if flag.is_used(view)] == named
