"""SM90's machine code for many tokens, compiled here with the installed Triton: what `product_wgmma` relies on."""

from __future__ import annotations

import collections
import re

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scripts.machine_code import compiled_tile
from sglang_sm120.kernels.sm120 import fp4_moe
from sglang_sm120.kernels.sm120.fp4_moe.device import reduce
from sglang_sm120.kernels.sm120.fp4_moe.host import schedule


def config(kernel: str, tokens: int, weights=fp4_moe.MXFP4, invariant: bool = False, inter: int = 2048):
    work = schedule.Work(tokens, 6, 256, 4096, inter, format=weights, invariant=invariant)
    plan = schedule.plan(work, 132, True)
    assert plan.many
    assert plan.partial == (torch.float32 if invariant else torch.bfloat16)
    tile = {"gate_up": plan.gate_up, "down": plan.down}[kernel]
    return {
        "format": weights.name, "kernel": kernel, "mode": "bf16", "tile": tile, "many": True, "scan": plan.scan,
        "turn": invariant, "partial": "*fp32" if invariant else "*bf16", "hidden": 4096, "inter": inter, "top_k": 6,
    }  # fmt: skip


NVFP4_TOO = [("gate_up", 512, fp4_moe.NVFP4), ("down", 4096, fp4_moe.NVFP4)]
INVARIANT = [
    (kernel, tokens, weights, True)
    for kernel, tokens, weights in (
        ("gate_up", 1, fp4_moe.MXFP4), ("down", 1, fp4_moe.NVFP4), ("gate_up", 64, fp4_moe.NVFP4),
        ("down", 256, fp4_moe.MXFP4), ("gate_up", 1024, fp4_moe.MXFP4), ("down", 4096, fp4_moe.MXFP4),
    )
]  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[("gate_up", 4096), ("down", 512), ("down", 1024), ("gate_up", 2048), *NVFP4_TOO, *INVARIANT],
    ids=str,
)
def code(request):
    """(tile, Triton's code of the loop, all machine code, that of the loop)."""
    made = config(*request.param)
    compiled = compiled_tile.compile_tile(made, 90)
    ttgir = compiled.asm["ttgir"]
    sass = compiled_tile.run_tool("nvdisasm", ["-c"], compiled.asm["cubin"])
    return made["tile"], ttgir[ttgir.index("scf.for") :], *compiled_tile.main_loop(sass)


def test_a_word_goes_from_shared_memory_to_the_mma(code):
    """Only scales change threads: two stores to shared memory a superblock, no permutes of codes, no spills, wgmma."""
    tile, _, everything, loop = code
    count = collections.Counter(compiled_tile.opcode(i).split(".")[0] for i in loop)
    assert count["HGMMA"] >= 4
    assert count["STS"] <= 2 * tile.superblocks
    # Take the scale bytes of two rows apart: two each, or NVFP4's four.
    assert count["PRMT"] <= 8 * tile.superblocks
    assert not [i for i in everything if compiled_tile.opcode(i).startswith(("LDL", "STL"))]
    assert not [i for i in loop if compiled_tile.opcode(i).split(".")[0] in ("LDG", "LD")]


def test_no_product_runs_on_while_the_next_step_decodes(code):
    """It would read registers that the decode writes."""
    _, triton_code, _, loop = code
    assert set(re.findall(r"pendings = (\d+)", triton_code)) == {"0"}
    assert [i for i in loop if "WARPGROUP.DEPBAR" in i] == ["WARPGROUP.DEPBAR.LE gsb0, 0x0"]


def test_all_widths_are_compiled():
    assert {config("down", tokens)["tile"].tokens for tokens in (512, 1024, 2048, 4096)} == {16, 32, 64, 128}


@pytest.mark.parametrize(
    ("kernel", "options"), [(reduce.reorder_rows, {}), (reduce.round_rows_to_mxfp8, {"WGMMA": True, "ASM": True})]
)
def test_what_comes_first_waits_before_it_touches_memory(kernel, options):
    """The workspace that it writes to may still be in use by the launch before."""
    constants = {"K": 4096, "BLOCKS": 32, "PDL": True} | options
    types = {"x_ptr": "*bf16", "q_ptr": "*bf16", "x_stride": "i32"}
    signature = {name: types.get(name, "constexpr") for name in kernel.compiled.arg_names}
    source = ASTSource(fn=kernel.compiled, signature=signature, constexprs=constants)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    order = re.findall(r"griddepcontrol\.\w+|ld\.global|st\.global", ptx)
    assert order[:2] == ["griddepcontrol.wait", "griddepcontrol.launch_dependents"]
    assert {"ld.global", "st.global"} <= set(order[2:])


@pytest.mark.parametrize("kernel", ["gate_up", "down"])
@pytest.mark.parametrize("weights", [fp4_moe.MXFP4, fp4_moe.NVFP4], ids=lambda f: f.name)
def test_half_a_superblock_costs_no_register(kernel, weights):
    """With more than 128 a thread one program of 8 warps is alone on its SM."""
    made = compiled_tile.measure(config(kernel, 8192, weights, inter=288), 90)
    assert (made["tokens"], made["warps"], made["spills"], made["sync_loads"]) == (128, 8, 0, 0)
    assert made["registers"] <= 128
