"""One tile of the MoE kernels compiled for SM120 or SM121, its machine code measured and held to limits; no GPU.

Needs the Triton that is on the path; its disassembler is used, or another wheel's that `TOOLS` names.
"""

from __future__ import annotations

import collections
import itertools
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

TOOLS = "SM120_REPORT_TOOLS"  # tells the process of another Triton where the installed one's tools are
SMS = 188
SHAPES = (  # hidden, intermediate of one rank, experts, top_k
    *((4096, 2048 // tp, 256, 6) for tp in (1, 2, 4, 8)),
    *((7168, 3072 // tp, 384, 6) for tp in (1, 2, 4, 8)),
    *((5120, 2304 // tp, 384, 6) for tp in (1, 4, 8)),
)
TOKENS = (1, 2, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# Per SM of compute capability 12.x (CUDA C++ Programming Guide, table of technical specifications).
SMEM_PER_SM, SMEM_PER_CTA, SMEM_RESERVED, REGISTERS_PER_SM, WARPS_PER_SM, CTAS_PER_SM = (
    102400,
    101376,
    1024,
    65536,
    48,
    24,
)
# Thread-instructions of the main loop per weight, by token tile. The narrowest tile is what decoding uses; wider ones
# spend more because the MMAs and scale products themselves grow with the tokens.
INSTRUCTIONS = {
    ("mxfp4", "bf16"): {8: 4.2, 16: 4.2, 32: 4.8},
    ("mxfp4", "mxfp8"): {8: 1.9, 32: 2.5, 64: 3.4},
    ("nvfp4", "bf16"): {8: 3.4, 16: 4.0, 32: 4.8},
}


def tiles() -> list[dict[str, Any]]:
    """Distinct (format, kernel, mode, tile) over the shapes, each with the first shape that uses it.

    Wide tiles count anew for each rest of the intermediate size; tiles that only batch-invariant calls take come last.
    """
    import torch

    from sglang_sm120.kernels.sm120.fp4_moe import MXFP4, NVFP4
    from sglang_sm120.kernels.sm120.fp4_moe.host import schedule

    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    modes = ((MXFP4, "bf16"), (MXFP4, "mxfp8"), (NVFP4, "bf16"))
    for (weights, mode), invariant in itertools.product(modes, (False, True)):
        for (hidden, inter, experts, top_k), tokens in itertools.product(SHAPES, TOKENS):
            fp8 = mode == "mxfp8"
            work = schedule.Work(
                tokens, top_k, experts, hidden, inter, mxfp8=fp8, fp8=fp8, invariant=invariant, format=weights
            )
            plan = schedule.plan(work, SMS, False)
            rest = plan.many and inter % 128 != 0  # neither whole steps of the second product nor tiles of the first
            for kernel, tile in (("gate_up", plan.gate_up), ("down", plan.down)):
                bf16 = plan.partial == torch.bfloat16
                key = (weights.name, kernel, mode, tile, plan.many, inter % 128 if rest else 0)
                found.setdefault(
                    key,
                    {"format": weights.name, "kernel": kernel, "mode": mode, "tile": tile, "many": plan.many,
                     "scan": plan.scan, "partial": "*bf16" if bf16 else "*fp32", "hidden": hidden, "inter": inter,
                     "top_k": top_k, "rest": rest},
                )  # fmt: skip
    return list(found.values())


def compile_tile(config: dict[str, Any], arch: int) -> Any:
    """A kernel of `tiles` for sm_90a, sm_120a or sm_121a."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from sglang_sm120.kernels.sm120.fp4_moe.device import gemm

    tile, fp8, first = config["tile"], config["mode"] == "mxfp8", config["kernel"] == "gate_up"
    nv = config["format"] == "nvfp4"
    constants = {
        "HIDDEN": config["hidden"], "INTER": config["inter"], "BN": tile.rows, "BT": tile.tokens,
        "SB": tile.superblocks, "UNROLL": tile.unroll, "STAGES": tile.stages, "SCAN": config["scan"],
        "MANY": config["many"], "WGMMA": config["many"] and arch == 90, "TURN": config.get("turn", False),
        "WIDE": False, "NV": nv, "ASM": True,
        "PDL": True, "FP8": fp8, "TOP_K": config["top_k"], "QUANT": fp8,
    }  # fmt: skip
    if not nv:
        constants["g_ptr"] = None
    activations, pairs = ("*u8", "*i16") if fp8 else ("*bf16", "*bf16")
    types = {
        "x_ptr": activations, "xs_ptr": pairs, "h_ptr": activations, "hs_ptr": "*u8" if fp8 and first else pairs,
        "w_ptr": "*u8", "s_ptr": "*i32" if nv else "*i16", "g_ptr": "*fp32", "o_ptr": config["partial"],
        "ids_ptr": "*i32", "table_ptr": "*i32", "x_stride": "i32", "limit": "fp32", "num_routes": "i32",
        "num_experts": "i32",
    }  # fmt: skip
    fn = getattr(gemm, config["kernel"]).compiled
    signature = {name: "constexpr" if name in constants else types[name] for name in fn.arg_names}
    aligned = [
        i for i, name in enumerate(fn.arg_names) if name == "x_stride" or (name.endswith("_ptr") and name != "g_ptr")
    ]
    source = ASTSource(
        fn=fn,
        signature=signature,
        constexprs={name: value for name, value in constants.items() if name in fn.arg_names},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def triton_tools(triton: Any) -> str:
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin")


def run_tool(name: str, arguments: list[str], cubin: bytes) -> str:
    """A tool of the installed Triton's wheel (nvdisasm, cuobjdump) on a cubin; older ones do not know sm_121."""
    import triton

    tool = Path(os.environ.get(TOOLS, triton_tools(triton))) / name
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        return subprocess.run([tool, *arguments, f.name], capture_output=True, text=True, check=True).stdout


def main_loop(sass: str) -> tuple[list[str], list[str]]:
    """(all instructions, those of the backward branch's body that holds the most MMAs)."""
    labels: dict[str, int] = {}
    instructions: list[str] = []
    for line in sass.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif instruction := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            instructions.append(instruction[1].strip())
    best, most = (0, 0), 0
    for i, text in enumerate(instructions):
        target = re.search(r"BRA.*`\((\.L_x_\d+)\)", text)
        start = labels.get(target[1], len(instructions)) if target else len(instructions)
        mmas = sum("MMA" in t for t in instructions[start:i])
        if mmas > most:
            best, most = (start, i + 1), mmas
    return instructions, instructions[slice(*best)]


def opcode(instruction: str) -> str:
    return re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0]


def _decodes(ttgir: str) -> list[str]:
    """The layout of each four-byte decode's operand."""
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", ttgir, re.M))
    decodes = re.findall(r"packed_element = 4 .*?\} [^:]*: tensor<[0-9x]+xi8, (#ttg\.dot_op<\{[^}]*\}>|#\w+)>", ttgir)
    return [layouts.get(layout, layout) for layout in decodes]


def decode_widths(ttgir: str) -> list[int]:
    """The kWidths of the MMA operands that are decoded: they decide in which order a step's products are added."""
    return sorted({int(n) for text in _decodes(ttgir) for n in re.findall(r"kWidth = (\d+)", text)})


def words_are_whole(ttgir: str) -> bool:
    """Whether every four-byte decode sees four neighbouring bytes of a row in a thread's registers.

    True for MMA operands of kWidth 4 or 8 and for blocked layouts with at least 4 elements a thread along the last
    dimension.
    """
    decodes = _decodes(ttgir)
    for text in decodes:
        blocked = re.search(r"sizePerThread = \[([0-9, ]+)\].*order = \[(\d)", text)
        if blocked:
            sizes = [int(n) for n in blocked[1].split(",")]
            whole = sizes[-1] % 4 == 0 and int(blocked[2]) == len(sizes) - 1
        else:
            whole = bool(re.search(r"kWidth = [48]\b", text))
        if not whole:
            return False
    return bool(decodes)


def lanes_hold_their_elements(ttgir: str) -> bool:
    """Whether every `match.any` compares ids of which lane i holds number i, as `routing` takes for granted."""
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", ttgir, re.M))
    used = re.findall(r'"match\.any.*?\} [^:]*: tensor<32xi32, (.+?)> ->', ttgir)
    owned = ["sizePerThread = [1], threadsPerWarp = [32]" in layouts.get(layout, "") for layout in used]
    return all(owned) and len(owned) == ttgir.count('"match.any')


def measure(config: dict[str, Any], arch: int) -> dict[str, Any]:
    import triton

    compiled, tile = compile_tile(config, arch), config["tile"]
    instructions, loop = main_loop(run_tool("nvdisasm", ["-c"], compiled.asm["cubin"]))
    usage = run_tool("cuobjdump", ["-res-usage"], compiled.asm["cubin"])
    registers, stack = (int(re.search(rf"{what}:(\d+)", usage)[1]) for what in ("REG", "STACK"))  # type: ignore[index]
    smem, threads = compiled.metadata.shared, 32 * tile.warps
    resident = min(
        SMEM_PER_SM // (smem + SMEM_RESERVED), REGISTERS_PER_SM // (-(-registers // 8) * 8 * threads),
        WARPS_PER_SM // tile.warps, CTAS_PER_SM,
    )  # fmt: skip
    ops = collections.Counter(opcode(i) for i in loop)
    mmas = collections.Counter(opcode(i).split(".")[0] for i in instructions if re.search(r"\b[HQO]MMA", i))
    copies = [o for o in ops.elements() if o.startswith("LDGSTS")]
    weights = tile.rows * 64 * tile.superblocks * tile.unroll / threads
    # The weight tile's bytes a thread and step, all of which must come in 16-byte copies.
    wide = sum("128" in o for o in copies)
    return {
        "triton": triton.__version__, "arch": f"sm_{arch}a", "format": config["format"], "kernel": config["kernel"],
        "mode": config["mode"],
        "tile": f"{tile.rows}x{tile.tokens}{', two steps' * (tile.unroll == 2)}{', rest' * config.get('rest', False)}",
        "warps": tile.warps,
        "stages": tile.stages, "wide": config["many"],
        "mma": dict(mmas), "scaled_mma": any("QMMA" in i and "SF" in i for i in instructions),
        "instructions_per_weight": round(len(loop) / weights, 2), "registers": registers,
        "spills": stack + sum(opcode(i).startswith(("LDL", "STL")) for i in instructions), "shared": smem,
        "ctas_per_sm": resident, "weight_copies_16b": wide >= weights / 2 / 16,
        "sync_loads": sum(o.split(".")[0] in ("LDG", "LD") for o in ops.elements()),
        "whole_words": words_are_whole(compiled.asm["ttgir"]), "tokens": tile.tokens,
        "decode_widths": decode_widths(compiled.asm["ttgir"]),
        "own_lanes": lanes_hold_their_elements(compiled.asm["ttgir"])
        and config["scan"] == ("match.any" in compiled.asm["ttgir"]),
    }  # fmt: skip


def broken_limits(row: dict[str, Any]) -> list[str]:
    """The limits that a row of `measure` breaks, in words."""
    tokens, limit = row["tokens"], INSTRUCTIONS[row["format"], row["mode"]][row["tokens"]]
    checks = {
        f"{row['spills']} spills": row["spills"] == 0,
        f"{row['shared']} bytes of shared memory, limit {SMEM_PER_CTA}": row["shared"] <= SMEM_PER_CTA,
        f"{row['ctas_per_sm']} CTAs an SM, limit 2": row["ctas_per_sm"] >= (2 if tokens <= 32 else 1),
        "weight copies narrower than 16 bytes": row["weight_copies_16b"],
        f"{row['sync_loads']} synchronous loads in the loop": row["sync_loads"] == 0,
        "a decode sees a torn word": row["whole_words"],
        "ids are compared in other lanes than their own": row["own_lanes"],
        f"{row['instructions_per_weight']} instructions a weight, limit {limit}": row["instructions_per_weight"]
        <= limit,
        "no block-scaled MMA": row["mode"] == "bf16" or row["scaled_mma"],
        "decomposed into bf16 MMAs": row["mode"] == "bf16" or "HMMA" not in row["mma"],
    }
    return [what for what, good in checks.items() if not good]


def orders_of_addition(rows: list[dict[str, Any]]) -> list[str]:
    """In words, where tiles that may take each other's place would not add in the same order."""
    widths: dict[tuple[str, ...], set[int]] = collections.defaultdict(set)
    for row in rows:
        if not row["wide"]:
            key = tuple(row[name] for name in ("triton", "arch", "format", "mode"))
            widths[key] |= set(row["decode_widths"])
    return [f"{' '.join(key)}: kWidths {sorted(found)}" for key, found in widths.items() if len(found) > 1]
