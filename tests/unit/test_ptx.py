from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.errors import PtxError
from codegen.ptx.instruction import Address, Immediate, Operand, Register, Symbol, Vector, parse_instruction
from codegen.ptx.module import Entry, parse_module

HEADER = ".version 9.0\n.target sm_80\n.address_size 64\n"


def entry_of(body: str) -> Entry:
    (entry,) = parse_module(HEADER + ".visible .entry k()\n{\n" + body + "\n}\n").entries.values()
    return entry


@pytest.mark.parametrize(
    ("text", "opcode", "operands"),
    [
        ("ret;", "ret", ()),
        ("mov.u32 \t%r1, %tid.x;", "mov.u32", (Register("%r1"), Register("%tid.x"))),
        (
            "fma.rn.f32 %f1,%f2,0f3F800001,%f1;",
            "fma.rn.f32",
            (Register("%f1"), Register("%f2"), Immediate(0x3F800001, "f32"), Register("%f1")),
        ),
        ("ld.shared.f32 %f1, [%r1+12];", "ld.shared.f32", (Register("%f1"), Address(Register("%r1"), 12))),
        ("ld.global.f32 %f1, [%rd1+-8];", "ld.global.f32", (Register("%f1"), Address(Register("%rd1"), -8))),
        ("st.global.f32 [%rd1 + 4], %f1", "st.global.f32", (Address(Register("%rd1"), 4), Register("%f1"))),
        ("ld.param.u64 %rd1, [k_param_0];", "ld.param.u64", (Register("%rd1"), Address(Symbol("k_param_0")))),
        ("ld.shared.u32 %r1, [1024];", "ld.shared.u32", (Register("%r1"), Address(None, 1024))),
        (
            "st.shared.v2.f32 [%r1], {%f1, %f2};",
            "st.shared.v2.f32",
            (Address(Register("%r1")), Vector((Register("%f1"), Register("%f2")))),
        ),
        (
            "ld.global.nc.L1::no_allocate.b32 %r1, [%rd1];",
            "ld.global.nc.L1::no_allocate.b32",
            (Register("%r1"), Address(Register("%rd1"))),
        ),
        ("bra.uni \t$L__BB0_2;", "bra.uni", (Symbol("$L__BB0_2"),)),
        (
            "setp.ne.and.b32 %p1, %r1, 0, !%p2;",
            "setp.ne.and.b32",
            (Register("%p1"), Register("%r1"), Immediate(0), Register("%p2", negated=True)),
        ),
        (
            "cp.async.ca.shared.global [%r1],[%rd1],4,%r2;",
            "cp.async.ca.shared.global",
            (Address(Register("%r1")), Address(Register("%rd1")), Immediate(4), Register("%r2")),
        ),
    ],
)
def test_an_instruction_is_its_opcode_and_operands(text: str, opcode: str, operands: tuple[Operand, ...]) -> None:
    instruction = parse_instruction(text)
    assert (instruction.opcode, instruction.operands, instruction.predicate) == (opcode, operands, None)


@pytest.mark.parametrize(("text", "negated"), [("@%p1 bra L;", False), ("@!%p1 bra L;", True)])
def test_a_predicate_may_be_negated(text: str, negated: bool) -> None:
    assert parse_instruction(text).predicate == Register("%p1", negated)


@pytest.mark.parametrize(
    ("text", "value"), [("-16", -16), ("0x1F", 31), ("0b101", 5), ("017", 15), ("0", 0), ("4294967295U", 2**32 - 1)]
)
def test_an_integer_may_have_any_base(text: str, value: int) -> None:
    assert parse_instruction(f"mov.u32 %r1, {text};").operands[1] == Immediate(value)


@given(st.floats(width=32))
def test_a_hexadecimal_float_keeps_its_bits(value: float) -> None:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    assert parse_instruction(f"mov.f32 %f1, 0f{bits:08X};").operands[1] == Immediate(bits, "f32")


def test_a_decimal_float_is_a_double() -> None:
    (bits,) = struct.unpack("<Q", struct.pack("<d", 1.5))
    assert parse_instruction("mov.f64 %fd1, 1.5;").operands[1] == Immediate(bits, "f64")
    assert parse_instruction(f"mov.f64 %fd1, 0d{bits:016X};").operands[1] == Immediate(bits, "f64")


@pytest.mark.parametrize("text", ["add.s32 %r1, %r2, 4+;", "ld.shared.f32 %f1, [%r1 4];", "setp.eq.s32 p|q, %r1, 0;"])
def test_an_unknown_operand_is_an_error_that_names_the_line(text: str) -> None:
    with pytest.raises(PtxError, match="line 7"):
        parse_instruction(text, line=7)


def test_a_module_knows_its_target_and_its_shared_memory() -> None:
    module = parse_module(HEADER + ".extern .shared .align 16 .b8 tile[];\n.shared .align 4 .b8 sums[1024];\n")
    assert (module.version, module.target) == ("9.0", "sm_80")
    assert [(v.name, v.space, v.size_bytes, v.alignment, v.extern) for v in module.variables] == [
        ("tile", "shared", 0, 16, True),
        ("sums", "shared", 1024, 4, False),
    ]


def test_an_entry_has_parameters_and_a_thread_limit() -> None:
    text = HEADER + (
        ".visible .entry first(\n\t.param .u64 a,\n\t.param .u64 .ptr .global .align 4 b,\n\t.param .u32 n\n)\n"
        ".maxntid 128, 2, 1\n{\n\tret;\n}\n.visible .entry second() { ret; }"
    )
    entries = parse_module(text.encode()).entries
    assert list(entries) == ["first", "second"]
    assert [(p.name, p.type) for p in entries["first"].parameters] == [("a", "u64"), ("b", "u64"), ("n", "u32")]
    assert (entries["first"].max_threads, entries["second"].max_threads) == (256, None)


def test_several_statements_stand_on_one_line() -> None:
    entry = entry_of(".reg .b32 %r<3>; mov.u32 %r1,1; @%p1 mov.u32 %r2,2; ret;")
    assert [i.opcode for i in entry.instructions] == ["mov.u32", "mov.u32", "ret"]
    assert set(entry.registers) == {"%r0", "%r1", "%r2"}


def test_noise_is_left_out_and_lines_still_count() -> None:
    entry = entry_of('// begin; ret;\n/* two\nlines; */\n .loc 1 2 3\n.pragma "no;unroll // x";\n ret; // ret;')
    assert [(i.opcode, i.line) for i in entry.instructions] == [("ret", 11)]


def test_a_label_is_the_position_of_the_next_instruction() -> None:
    entry = entry_of("a: mov.u32 %r1,1;\nb:\nc: ret;\nend:")
    assert dict(entry.labels) == {"a": 0, "b": 1, "c": 1, "end": 2}


def test_each_block_has_its_own_registers() -> None:
    block = "{ .reg .pred p; setp.ne.b32 p,%r1,0; @!p mov.b32 %r2,q; }\n"
    entry = entry_of(".reg .b32 %r<3>; .reg .b32 q;\n" + block + block)
    first, _, second, move = entry.instructions
    assert first.operands[0] != second.operands[0]
    assert isinstance(second.operands[0], Register)
    assert move.predicate == Register(second.operands[0].name, negated=True)
    assert move.operands[1] == Register("q")
    assert [kind for name, kind in entry.registers.items() if name.startswith("p")] == ["pred", "pred"]


def test_a_block_may_hide_an_outer_name() -> None:
    entry = entry_of(".reg .b32 x; mov.b32 x,1; { .reg .b32 x; mov.b32 x,2; { mov.b32 x,3; } } mov.b32 x,4;")
    targets = [i.operands[0] for i in entry.instructions]
    names = [target.name for target in targets if isinstance(target, Register)]
    assert names[0] == names[3] == "x"
    assert names[1] == names[2] != "x"


def test_a_name_means_what_was_declared_before() -> None:
    entry = entry_of(".reg .b32 x; { mov.b32 x,1; .reg .b32 x; mov.b32 x,2; }")
    first, second = (i.operands[0] for i in entry.instructions)
    assert isinstance(first, Register)
    assert isinstance(second, Register)
    assert first.name == "x" != second.name


def test_each_block_has_its_own_labels() -> None:
    entry = entry_of("{ again: @%p1 bra again; bra done; done: }\n{ again: @%p2 bra again; bra done; done: }")
    named = [i.operands[0] for i in entry.instructions]
    assert [entry.labels[label.name] for label in named if isinstance(label, Symbol)] == [0, 2, 2, 4]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (HEADER + ".visible .entry k()\n{\n  ret\n}\n", 6),
        (HEADER + ".visible .entry k()\n{\n  ret;\n", 7),
        (HEADER + ".visible .func (.param .b32 r) f();\n", 4),
        (HEADER + ".visible .entry k()\n{\n  .branchtargets a, b;\n}\n", 6),
        ("int main() { return 0; }", 1),
        ("", 1),
    ],
)
def test_what_is_not_ptx_is_an_error_that_names_the_line(text: str, line: int) -> None:
    with pytest.raises(PtxError, match=f"line {line}:"):
        parse_module(text)


def test_a_table_has_its_numbers_and_as_many_as_it_is_declared_for() -> None:
    text = HEADER + ".global .align 256 .b64 farm_table[{}] = {{\n0x0000000000000010,\n0x00000000000000FF \n}};\n"
    [table] = parse_module(text.format(2)).variables
    assert (table.name, table.space, table.size_bytes, table.alignment) == ("farm_table", "global", 16, 256)
    assert table.numbers is not None
    assert table.numbers.tolist() == [16, 255]
    with pytest.raises(PtxError, match="2 numbers of 8 bytes, and is declared for 24 bytes"):
        parse_module(text.format(3))
