"""The replaced instructions, lane by lane, against what they are by definition; and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from ptx_machine import LANES, Machine, block_scaled_mma

from sglang_sm120.commands.selftest.sm120_code import known_forms, mutations
from sglang_sm120.commands.selftest.sm120_code.ptx import PtxError, statements
from sglang_sm120.commands.selftest.sm120_code.substitute import SUBSTITUTIONS, NotSubstituted, for_sm90

HEAD = ".version 8.8\n.target sm_120a\n.address_size 64\n"
MMA = "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0"


def replacement(instruction: str, broken: str | None = None) -> str:
    """The text that stands for one instruction, without the module around it."""
    text = for_sm90(HEAD + instruction).text
    if broken:
        text, places = mutations.broken(text, broken)
        assert places
    return text[text.index("{\n") :]


def mma(byte_a: int, thread_a: int, byte_b: int, thread_b: int, in_place: bool = True) -> str:
    sums = "%c0, %c1, %c2, %c3" if in_place else "%c3, %c2, %c1, %c0"
    return (
        f"{MMA} {{ {sums} }}, {{ %a0, %a1, %a2, %a3 }}, {{ %b0, %b1 }}, {{ %c0, %c1, %c2, %c3 }}, "
        f"%sa, {{ {byte_a}, {thread_a} }}, %sb, {{ {byte_b}, {thread_b} }};"
    )


def fragments(rng, codes=None, scales=None):
    """Random registers: a, b of e4m3 codes, c float32, a scale byte in each byte of each lane."""
    codes = codes if codes is not None else [c for c in range(256) if c & 127 != 127]
    scales = scales if scales is not None else range(110, 146)

    def words(pool, *shape):
        parts = rng.choice(np.array(list(pool), np.uint64), (*shape, 4))
        return parts[..., 0] | parts[..., 1] << 8 | parts[..., 2] << 16 | parts[..., 3] << 24

    c = rng.standard_normal((LANES, 4)).astype(np.float32) * 100
    return (
        words(codes, LANES, 4).astype(np.uint32), words(codes, LANES, 2).astype(np.uint32), c,
        words(scales, LANES).astype(np.uint32), words(scales, LANES).astype(np.uint32),
    )  # fmt: skip


def on_the_machine(text, a, b, c, scale_a, scale_b, in_place=True):
    given = {f"a{i}": a[:, i] for i in range(4)} | {f"b{i}": b[:, i] for i in range(2)}
    given |= {f"c{i}": c[:, i].copy().view(np.uint32) for i in range(4)}
    machine = Machine(**given, sa=scale_a, sb=scale_b)
    machine.run(text)
    return np.stack([machine.floats(f"c{i if in_place else 3 - i}") for i in range(4)], 1)


def agrees(got, given, *selectors) -> bool:
    """Equal to the definition but for three roundings to float32, of two partial sums and the result."""
    a, b, c, sa, sb = given
    positive = a & 0x7F7F7F7F, b & 0x7F7F7F7F, np.abs(c), sa, sb
    with np.errstate(over="ignore", invalid="ignore"):
        want, size = (block_scaled_mma(*parts, *selectors) for parts in (given, positive))
        near = np.abs(got - want) <= 3 * 2.0**-24 * size + 2.0**-149
        same = (got == want.astype(np.float32)) | (np.isnan(got) & np.isnan(want))
    return bool((same | (np.isfinite(got) & near)).all())


SELECTORS = list(itertools.product(range(4), range(2), range(4), range(4)))


@pytest.mark.parametrize("in_place", [True, False])
def test_the_block_scaled_mma_with_every_selector(in_place):
    rng = np.random.default_rng(0)
    for selectors in SELECTORS:
        given = fragments(rng)
        got = on_the_machine(replacement(mma(*selectors, in_place)), *given, in_place=in_place)
        assert agrees(got, given, *selectors), selectors


def test_small_whole_numbers_are_exact():
    """e4m3 1.0 to 8.0 and scales near 1: every sum fits in float32, so each bit must be right."""
    rng = np.random.default_rng(1)
    for selectors in SELECTORS[::7]:
        a, b, c, sa, sb = fragments(rng, range(0x38, 0x51, 4), range(125, 130))
        given = a, b, np.round(c), sa, sb
        want = block_scaled_mma(*given, *selectors)
        assert (on_the_machine(replacement(mma(*selectors)), *given) == want).all()


@pytest.mark.parametrize("ends", [[0], [254], [255], [0, 254], [0, 1, 127, 253, 254, 255]])
def test_scales_at_the_ends(ends):
    """Byte 0 is 2**-127, byte 255 NaN, and 2**-127 times 2**127 is 1."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        a, b, c, sa, sb = fragments(rng, scales=ends)
        given = a, b, c * 0, sa, sb
        with np.errstate(over="ignore"):
            got = on_the_machine(replacement(mma(1, 1, 2, 3)), *given)
        assert agrees(got, given, 1, 1, 2, 3)
        if ends in ([255], [254]):
            assert not np.isfinite(got[got != 0]).any()


def test_nan_codes_stay_in_their_row_or_column():
    rng = np.random.default_rng(3)
    a, b, c, sa, sb = fragments(rng)
    a[5, 0] |= 0x7F  # row 1
    b[9, 1] |= 0xFF00  # column 2
    given = a, b, c, sa, sb
    got, want = on_the_machine(replacement(mma(0, 0, 0, 0)), *given), block_scaled_mma(*given, 0, 0, 0, 0)
    assert int(np.isnan(want).sum()) == 8 + 16 - 1
    assert (np.isnan(got) == np.isnan(want)).all()


def test_a_wrong_lane_for_a_scale_is_seen():
    rng = np.random.default_rng(4)
    given = fragments(rng)
    assert not agrees(on_the_machine(replacement(mma(0, 0, 0, 0), "lane"), *given), given, 0, 0, 0, 0)


@pytest.mark.parametrize("wrong", [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)])
def test_another_selector_is_another_result(wrong):
    given = fragments(np.random.default_rng(5))
    assert not agrees(on_the_machine(replacement(mma(0, 0, 0, 0)), *given), given, *wrong)


def pairs(rng):
    return rng.integers(-99, 99, (LANES, 2)).astype(np.float32)


PACKED = {
    "add.f32x2": lambda a, b, c: a + b,
    "add.rn.ftz.f32x2": lambda a, b, c: a + b,
    "sub.rn.f32x2": lambda a, b, c: a - b,
    "mul.f32x2": lambda a, b, c: a * b,
    "fma.rn.f32x2": lambda a, b, c: a * b + c,
    "fma.rn.ftz.f32x2": lambda a, b, c: a * b + c,
}


@pytest.mark.parametrize("opcode", PACKED)
@pytest.mark.parametrize("broken", [None, "half"])
def test_packed_arithmetic_is_done_on_either_half(opcode, broken):
    rng = np.random.default_rng(6)
    a, b, c = pairs(rng), pairs(rng), pairs(rng)
    registers = {n: v.view(np.uint64)[:, 0] for n, v in zip("abc", (a, b, c), strict=True)}
    machine = Machine(**registers, d=np.zeros(LANES, np.uint64))
    inputs = "%a, %b, %c" if opcode.startswith("fma") else "%a, %b"
    text = replacement(f"{opcode} %d, {inputs};", broken)
    assert f"\n{opcode.removesuffix('x2')} " in text  # its modifiers stay
    machine.run(text)
    assert (machine.pair("d") == PACKED[opcode](a, b, c)).all() == (broken is None)


def test_a_packed_result_may_be_an_input_and_have_a_predicate():
    rng = np.random.default_rng(7)
    a, b = pairs(rng), pairs(rng)
    machine = Machine(a=a.view(np.uint64)[:, 0], b=b.view(np.uint64)[:, 0])
    machine.registers["%p"] = np.arange(LANES) % 2 == 0
    machine.run(replacement("@%p add.f32x2 %a, %a, %b;"))
    assert (machine.pair("a") == np.where(machine.registers["%p"][:, None], a + b, a)).all()


@pytest.mark.parametrize(("opcode", "rule"), [("max.f32", np.fmax), ("min.f32", np.fmin)])
def test_the_largest_of_three(opcode, rule):
    rng = np.random.default_rng(8)
    a, b, c = rng.standard_normal((3, LANES)).astype(np.float32)
    a[::3], b[::5] = np.nan, np.nan
    machine = Machine(**{n: v.view(np.uint32) for n, v in zip("abc", (a, b, c), strict=True)})
    machine.run(replacement(f"{opcode} %c, %a, %b, %c;"))
    assert (machine.floats("c") == rule(rule(a, b), c)).all()


REFUSED = [
    "cvt.rn.satfinite.e2m1x2.f32 %r0, %f1, %f2;",
    "cvt.rn.f16x2.e2m1x2 %r0, %rs1;",
    "cvt.rz.satfinite.ue8m0x2.f32 %rs0, %f1, %f2;",
    "cvt.rn.bf16x2.ue8m0x2 %r0, %rs1;",
    "cvt.rn.bf16x2.e4m3x2 %r0, %rs1;",
    "cvt.rs.f16x2.f32 %r0, %f1, %f2, %r3;",
    "ld.global.v8.b32 {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%rd0];",
    "ld.global.v4.b64 {%rd1, %rd2, %rd3, %rd4}, [%rd0];",
    "st.global.v4.f64 [%rd0], {%rd1, %rd2, %rd3, %rd4};",
    "max.bf16x2 %r0, %r1, %r2, %r3;",
    "add.f32.bf16 %f0, %rs1, %f2;",
    "redux.sync.min.f32 %f0, %f1, 0xffffffff;",
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%r2];",
    "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r2], {%r0};",
    "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%r1];",
    "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e4m3.e2m1.f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, "
    "{%r4, %r5}, {%f0, %f1, %f2, %f3};",
    "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 {%f0}, {%r0}, "
    "{%r1}, {%f0}, %r2, {0, 0}, %r3, {0, 0};",
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0}, {%r0}, {%r1}, {%f0};",
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r0], [%rd0], %r1, [%r2];",
    "cp.async.bulk.commit_group;",
    "setmaxnreg.inc.sync.aligned.u32 232;",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0}, %rd0, %rd1, 1, 1, 1, 0, 0;",
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p0, %rq0;",
    "frobnicate.b32 %r0, %r1;",
]  # fmt: skip


@pytest.mark.parametrize("instruction", REFUSED, ids=lambda i: i.split()[0])
@pytest.mark.parametrize("guard", ["", "@%p1 ", "@!%p1 "])
def test_other_instructions_are_refused_by_name(instruction, guard):
    with pytest.raises(NotSubstituted) as error:
        for_sm90(f"{HEAD}{{ mov.u32 %r0, 0x0; {guard}{instruction} ret; }}")
    assert instruction.split()[0].rstrip(";") in str(error.value)


@pytest.mark.parametrize(
    "instruction",
    [
        mma(0, 0, 0, 0).replace("e4m3.e4m3", "e5m2.e4m3"), mma(0, 0, 0, 0).replace("{ 0, 0 }", "{ %rs0, %rs1 }"),
        mma(0, 2, 0, 0), mma(0, 0, 0, 4), "@%p1 " + mma(0, 0, 0, 0), mma(0, 0, 0, 0).replace("%b0, ", ""),
    ],
)  # fmt: skip
def test_other_forms_of_the_mma_are_refused(instruction):
    with pytest.raises(NotSubstituted, match="mma"):
        for_sm90(HEAD + instruction)


@pytest.mark.parametrize("target", ["sm_100a", "sm_120", "sm_120f", "sm_90a"])
def test_other_targets_are_refused(target):
    with pytest.raises(NotSubstituted, match=target):
        for_sm90(HEAD.replace("sm_120a", target) + "ret;")


def test_a_module_without_target_is_refused():
    with pytest.raises(NotSubstituted, match=r"0 \.target"):
        for_sm90(".version 8.8\nret;")


def test_every_refused_thing_is_named_with_its_number():
    with pytest.raises(NotSubstituted, match=r"frobnicate.b32 \(.*\), 2 times; twiddle.u32 \(.*\), 1 times"):
        for_sm90(HEAD + "frobnicate.b32 %r0;\nfrobnicate.b32 %r1;\ntwiddle.u32 %r0;")


def test_what_may_stay_stays_as_it_is():
    body = "ld.param.b64 %rd1, [k_param_0];\nL_1:\n@%p1 bra L_1;\ncp.async.wait_group 0x1;\nret;\n"
    done = for_sm90(HEAD + body)
    assert done.text == HEAD.replace("sm_120a", "sm_90a") + body
    assert done.replaced == {".target": 1}


def test_replaced_instructions_are_counted():
    done = for_sm90(HEAD + mma(0, 0, 0, 0) + "add.f32x2 %a, %b, %c;mul.f32x2 %a, %b, %c;max.f32 %a, %b, %c, %d;")
    assert done.replaced == {".target": 1, "block-scaled MMA": 1, "f32x2": 2, "min or max of three": 1}


def test_statements_hold_the_whole_text():
    text = '.file 1 "/a//b.py"\n{ .reg .b32 %r<2>; // comment ; {\n mov.b64 {%r0,\n %r1}, %rd0; }\n.b8 1\n'
    found = list(statements(text))
    assert "".join(s.text for s in found).split() == text.replace("// comment ; {", "").split()
    assert [(s.opcode, s.operands) for s in found if s.kind == "instruction"] == [
        ("mov.b64", ("{%r0,\n %r1}", "%rd0")),
    ]


@pytest.mark.parametrize("text", ["MOV.B32 %r0, %r1;", "= 5;", "mov.b32 %r0, %r1"])
def test_what_is_no_ptx_is_refused(text):
    with pytest.raises(PtxError):
        for_sm90(HEAD + text)


def test_each_substitution_says_where_it_is_from():
    assert all(len(s.states) > 80 and s.section for s in SUBSTITUTIONS)
    assert known_forms.reason_against("max.f32", 3) is None
    assert known_forms.reason_against("max.f32", 4)
