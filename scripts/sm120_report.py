#!/usr/bin/env python3
"""Compile the MXFP4 MoE kernels for SM120 and SM121 without a GPU and report what the machine code looks like."""

import argparse
import collections
import os
import re
import subprocess
import tempfile
import time


def compile_kernel(kernel, pointers, scalars, constants, arch, warps, stages):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    fn = kernel.compiled
    signature, attrs = {}, {}
    for i, name in enumerate(fn.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        else:
            signature[name] = pointers.get(name) or scalars[name]
            if name in pointers or name in ("x_stride", "y_stride"):
                attrs[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=attrs)
    return triton.compile(
        source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps, "num_stages": stages}
    )


def disassemble(compiled):
    import triton

    tool = os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin/nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(compiled.asm["cubin"])
        f.flush()
        return subprocess.run([tool, "-c", f.name], capture_output=True, text=True, check=True).stdout


def resources(compiled):
    import triton

    tool = os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin/cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(compiled.asm["cubin"])
        f.flush()
        out = subprocess.run([tool, "-res-usage", f.name], capture_output=True, text=True, check=True).stdout
    return (
        int(re.search(r"REG:(\d+)", out)[1]),
        int(re.search(r"STACK:(\d+)", out)[1]),
        int(re.search(r"LOCAL:(\d+)", out)[1]),
    )


def loop_of(sass):
    labels, ins = {}, []
    for line in sass.splitlines():
        m = re.match(r"\s*(\.L_x_\d+):", line)
        if m:
            labels[m[1]] = len(ins)
            continue
        m = re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line)
        if m:
            ins.append(m[1].strip())
    best = None
    for i, s in enumerate(ins):
        m = re.search(r"BRA.*`\((\.L_x_\d+)\)", s)
        if m and labels.get(m[1], 1 << 30) <= i:
            a = labels[m[1]]
            n = sum("MMA" in x for x in ins[a:i])
            if n and (best is None or n > best[2]):
                best = (a, i, n)
    return ins, (ins[best[0] : best[1] + 1] if best else [])


def configs(args):
    for mode in ("bf16",):
        for BN, BT in ((64, 8), (32, 8), (16, 8), (64, 16), (64, 32)):
            for name, K in (("gate_up", 4096), ("down", 1024)):
                yield mode, name, 4096, 1024, BN, BT, 4


def main():
    from sglang_sm120.kernels.sm120.mxfp4_moe import gemm

    p = argparse.ArgumentParser()
    p.add_argument("--arch", type=int, default=120)
    p.add_argument("--sass")
    p.add_argument("--wide", action="store_true")
    a = p.parse_args()
    import triton

    for mode, name, H, I, BN, BT, stages in configs(a):
        k = getattr(gemm, name)
        c = dict(
            HIDDEN=H,
            INTER=I,
            RP=64,
            EP=1,
            BN=BN,
            BT=BT,
            SB=4,
            STAGES=stages,
            SCAN=True,
            WIDE=a.wide,
            ASM=True,
            PDL=True, PREFETCH=True,
        )
        if name == "gate_up":
            c.update(TOP_K=6, QUANT=False)
        ptr = dict(
            x_ptr="*bf16", h_ptr="*bf16", w_ptr="*u8", s_ptr="*i16", o_ptr="*fp32", ids_ptr="*i32", counts_ptr="*i32"
        )
        sc = dict(x_stride="i32", limit="fp32", num_routes="i32", num_experts="i32", prefetching_programs="i32")
        t = time.time()
        try:
            r = compile_kernel(k, ptr, sc, c, a.arch, 4, stages)
        except Exception as e:
            print(name, BN, BT, "ERR", repr(e)[:500])
            continue
        sass = disassemble(r)
        ins, body = loop_of(sass)
        if a.sass:
            open(a.sass + f"-{name}-{BN}-{BT}.sass", "w").write("\n".join(body))
            open(a.sass + f"-{name}-{BN}-{BT}.full", "w").write("\n".join(ins))
            open(a.sass + f"-{name}-{BN}-{BT}.ttgir", "w").write(r.asm["ttgir"])
        ops = collections.Counter(re.sub(r"^@!?U?P\w+ ", "", x).split()[0].split(".")[0] for x in body)
        w = BN * 256 / 128
        print(
            triton.__version__,
            a.arch,
            mode,
            name,
            f"BN{BN} BT{BT}",
            "i/w %.2f" % (len(body) / w),
            "all",
            len(ins),
            "reg/stack/local",
            resources(r),
            "smem",
            r.metadata.shared,
            "%.1fs" % (time.time() - t),
            dict(ops.most_common(14)),
            flush=True,
        )


main()
