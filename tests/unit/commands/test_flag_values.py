"""Values of SGLang's flags with which no launch works, and those that only look so."""

import pytest

from sglang_sm120.commands.plan import flag_values

GOOD = {
    "tp_size": 4,
    "pp_size": 1,
    "ep_size": 2,
    "dp_size": 1,
    "nnodes": 2,
    "node_rank": 1,
    "page_size": 256,
    "port": 30000,
    "mem_fraction_static": 0.85,
    "dist_init_addr": "10.0.0.1:25000",
}


def faults(check, *arguments, **changed):
    try:
        check((GOOD | changed).get, *arguments)
    except flag_values.ImpossibleFlagsError as error:
        return error.faults
    return []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tp_size": 0}, "--tp is 0; expected 1 or more"),
        ({"pp_size": -1}, "--pp-size is -1; expected 1 or more"),
        ({"ep_size": 0}, "--ep-size is 0; expected 1 or more"),
        ({"ep_size": 3}, "--ep-size is 3; expected a divisor of --tp, which is 4"),
        ({"moe_dp_size": 4}, "--ep-size x --moe-dp-size is 8; expected a divisor of --tp, which is 4"),
        ({"dp_size": 0}, "--dp-size is 0; expected 1 or more"),
        (
            {"dp_size": 3, "enable_dp_attention": True},
            "--dp-size or --attn-dp-size is 3; expected a divisor of --tp, which is 4",
        ),
        ({"nnodes": 3}, "--nnodes is 3; expected a divisor of --tp x --pp-size, which is 4"),
        ({"node_rank": 2}, "--node-rank is 2; expected 0 to 1, as --nnodes is 2"),
        ({"max_total_tokens": 255}, "--max-total-tokens is 255; expected 256 or more"),
        ({"context_length": 0}, "--context-length is 0; expected 1 or more"),
        ({"speculative_num_steps": -1}, "--speculative-num-steps is -1; expected 0 or more"),
        ({"port": 65536}, "--port is 65536; expected 0 to 65535"),
        ({"nccl_port": -1}, "--nccl-port is -1; expected 0 to 65535"),
    ],
)
def test_no_launch_has_these(changed, says):
    assert faults(flag_values.require, **changed) == [says]


@pytest.mark.parametrize("part", [0, -0.5, 1.01, 5.0, float("nan")])
def test_a_part_of_memory_that_is_none(part):
    (fault,) = faults(flag_values.require, mem_fraction_static=part)
    assert fault.startswith(
        f"--mem-fraction-static is {part}; expected a part of a GPU's memory, above 0 and at most 1"
    )


@pytest.mark.parametrize("address", ["10.0.0.1:99999", "10.0.0.1", "h:", "h:x", ":25000", "h:0", "h:-1", "h:\u0662"])
def test_an_address_without_a_port(address):
    (fault,) = faults(flag_values.require, dist_init_addr=address)
    assert fault.startswith(f"--dist-init-addr is {address!r}; expected ADDRESS:PORT")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        dict.fromkeys(GOOD),  # unset
        {"mem_fraction_static": 1},
        {"max_total_tokens": 256},
        {"speculative_num_steps": 0},
        {"chunked_prefill_size": -3},
        {"port": 0},
        {"dp_size": 3},  # copies of the model, each with all of --tp
        {"dist_init_addr": "[fe80::1]:25000"},
        {"nnodes": 3, "ep_join_mode": "scale"},
    ],
)
def test_what_sglang_gives_a_meaning_stays(changed):
    assert faults(flag_values.require, **changed) == []


def test_each_fault_has_its_line():
    assert len(faults(flag_values.require, port=-1, mem_fraction_static=2, node_rank=7)) == 3


def test_shares_of_the_experts():
    shares = flag_values.require_shares
    assert faults(shares, 256, 2048) == []
    assert faults(shares, 256, 2048, tp_size=3, ep_size=1) == [
        "--tp is 3; expected a divisor of moe_intermediate_size in config.json, which is 2048"
    ]
    assert faults(shares, 256, 2048, tp_size=6, ep_size=2) == [
        "--tp / --ep-size is 3; expected a divisor of moe_intermediate_size in config.json, which is 2048"
    ]
    assert faults(shares, 256, 64, tp_size=20, ep_size=1, moe_dp_size=4) == [
        "--tp / --ep-size / --moe-dp-size is 5; expected a divisor of moe_intermediate_size in config.json, which is 64"
    ]
    assert faults(shares, 256, 2048, tp_size=3, ep_size=3) == [
        "--ep-size is 3; expected a divisor of n_routed_experts in config.json, which is 256"
    ]


@pytest.mark.parametrize(
    ("changed", "heads", "says"),
    [
        ({"tp_size": 3}, 64, "--tp is 3; expected a divisor of num_attention_heads in config.json, which is 64"),
        (
            {"tp_size": 6, "dp_size": 2, "enable_dp_attention": True},
            64,
            "--tp / --dp-size or --attn-dp-size / --attn-cp-size is 3; expected a divisor of num_attention_heads in "
            "config.json, which is 64",
        ),
        ({"tp_size": 6, "dp_size": 3, "enable_dp_attention": True}, 64, None),
        ({"tp_size": 16}, 128, None),
    ],
)
def test_heads_are_shared_out_too(changed, heads, says):
    assert faults(flag_values.require_attention_shares, heads, 512, None, **changed) == ([says] if says else [])


def test_groups_of_outputs_that_leave_a_rank_none_are_told():
    asked = (GOOD | {"tp_size": 16}).get
    groups = "--tp is 16; expected a divisor of o_groups in config.json, which is 8"
    assert flag_values.require_attention_shares(asked, 64, 512, 8) == [groups]
    assert flag_values.require_attention_shares(asked, 128, 512, 16) == []
    heads = "--tp is 16; expected a divisor of num_attention_heads in config.json, which is 8"
    assert flag_values.require_attention_shares(asked, 8, 512, 8) == [heads, groups]  # 256 columns for each rank
