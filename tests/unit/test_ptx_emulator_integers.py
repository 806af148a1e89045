"""Integer instructions one at a time, against exact arithmetic on Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.emulator.ptx import emulate
from tests.unit.bench import launch, words
from tests.unit.single_instruction import COMPARISONS, FEW, apply, bits_of, number, patterns, signed, truncated_quotient

INTEGER_TYPES = ["u16", "s16", "u32", "s32", "u64", "s64"]
TWO_OPERANDS: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, bits: a + b,
    "sub": lambda a, b, bits: a - b,
    "mul.lo": lambda a, b, bits: a * b,
    "mul.hi": lambda a, b, bits: a * b >> bits,
    "min": lambda a, b, bits: min(a, b),
    "max": lambda a, b, bits: max(a, b),
    "div": lambda a, b, bits: truncated_quotient(a, b) if b else -1,
    "rem": lambda a, b, bits: a - truncated_quotient(a, b) * b if b else 0,
}


@pytest.mark.parametrize("kind", INTEGER_TYPES)
@pytest.mark.parametrize("name", TWO_OPERANDS)
@FEW
@given(data=st.data())
def test_integer_arithmetic_wraps(name: str, kind: str, data: st.DataObject) -> None:
    bits = bits_of(kind)
    pairs = data.draw(st.lists(st.tuples(patterns(bits), patterns(bits)), min_size=1, max_size=50))
    a, b = ([pair[i] for pair in pairs] for i in (0, 1))
    expected = [TWO_OPERANDS[name](number(x, kind), number(y, kind), bits) % (1 << bits) for x, y in pairs]
    assert apply(f"{name}.{kind}", kind, (kind, a), (kind, b)) == expected


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
@FEW
@given(data=st.data())
def test_a_wide_product_has_twice_the_bits(kind: str, data: st.DataObject) -> None:
    bits, wide = bits_of(kind), kind[0] + str(2 * bits_of(kind))
    triples = data.draw(
        st.lists(st.tuples(patterns(bits), patterns(bits), patterns(2 * bits)), min_size=1, max_size=50)
    )
    a, b, c = ([triple[i] for triple in triples] for i in range(3))
    products = [number(x, kind) * number(y, kind) for x, y in zip(a, b, strict=True)]
    modulus = 1 << (2 * bits)
    assert apply(f"mul.wide.{kind}", wide, (kind, a), (kind, b)) == [p % modulus for p in products]
    sums = [(p + z) % modulus for p, z in zip(products, c, strict=True)]
    assert apply(f"mad.wide.{kind}", wide, (kind, a), (kind, b), (wide, c)) == sums


@pytest.mark.parametrize("kind", INTEGER_TYPES)
@FEW
@given(data=st.data())
def test_mad_adds_half_a_product(kind: str, data: st.DataObject) -> None:
    bits = bits_of(kind)
    one = patterns(bits)
    triples = data.draw(st.lists(st.tuples(one, one, one), min_size=1, max_size=50))
    columns = [(kind, [triple[i] for triple in triples]) for i in range(3)]
    values = [[number(value, kind) for value in triple] for triple in triples]
    assert apply(f"mad.lo.{kind}", kind, *columns) == [(a * b + c) % (1 << bits) for a, b, c in values]
    assert apply(f"mad.hi.{kind}", kind, *columns) == [((a * b >> bits) + c) % (1 << bits) for a, b, c in values]


@pytest.mark.parametrize("bits", [16, 32, 64])
@FEW
@given(data=st.data())
def test_shifts_by_the_width_or_more_leave_nothing_but_the_sign(bits: int, data: st.DataObject) -> None:
    amount = st.integers(0, 70) | patterns(32)
    pairs = data.draw(st.lists(st.tuples(patterns(bits), amount), min_size=1, max_size=50))
    a, n = ([pair[i] for pair in pairs] for i in (0, 1))
    arguments = ((f"b{bits}", a), ("u32", n))
    expected_left = [(x << min(s, 64)) % (1 << bits) for x, s in pairs]
    assert apply(f"shl.b{bits}", f"b{bits}", *arguments) == expected_left
    assert apply(f"shr.u{bits}", f"b{bits}", *arguments) == [x >> min(s, 64) for x, s in pairs]
    expected_signed = [(signed(x, bits) >> min(s, 64)) % (1 << bits) for x, s in pairs]
    assert apply(f"shr.s{bits}", f"b{bits}", *arguments) == expected_signed


@pytest.mark.parametrize("bits", [16, 32, 64])
@FEW
@given(data=st.data())
def test_logic_and_sign_work_on_every_width(bits: int, data: st.DataObject) -> None:
    pairs = data.draw(st.lists(st.tuples(patterns(bits), patterns(bits)), min_size=1, max_size=50))
    kind, modulus = f"b{bits}", 1 << bits
    a, b = (kind, [pair[0] for pair in pairs]), (kind, [pair[1] for pair in pairs])
    assert apply(f"and.b{bits}", kind, a, b) == [x & y for x, y in pairs]
    assert apply(f"or.b{bits}", kind, a, b) == [x | y for x, y in pairs]
    assert apply(f"xor.b{bits}", kind, a, b) == [x ^ y for x, y in pairs]
    assert apply(f"not.b{bits}", kind, a) == [~x % modulus for x, _ in pairs]
    assert apply(f"neg.s{bits}", kind, a) == [-x % modulus for x, _ in pairs]
    assert apply(f"abs.s{bits}", kind, a) == [abs(signed(x, bits)) % modulus for x, _ in pairs]
    assert apply(f"mov.b{bits}", kind, a) == a[1]


@pytest.mark.parametrize("kind", INTEGER_TYPES)
@FEW
@given(data=st.data())
def test_comparisons_know_the_sign(kind: str, data: st.DataObject) -> None:
    bits = bits_of(kind)
    pairs = data.draw(st.lists(st.tuples(patterns(bits), patterns(bits)), min_size=1, max_size=50))
    arguments = [(kind, [pair[i] for pair in pairs]) for i in (0, 1)]
    aliases = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"} if kind[0] == "u" else {}
    for name in [*COMPARISONS, *aliases]:
        compare = COMPARISONS[aliases.get(name, name)]
        expected = [int(compare(number(x, kind), number(y, kind))) for x, y in pairs]
        assert apply(f"setp.{name}.{kind}", "pred", *arguments) == expected, name


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize(("name", "combine"), [("and", int.__and__), ("or", int.__or__), ("xor", int.__xor__)])
def test_a_comparison_combines_with_a_predicate(name: str, combine: Callable[[int, int], int], negated: bool) -> None:
    a, b, c = [1, 1, 2, 2], [1, 1, 1, 1], [0, 1, 0, 1]
    got = apply(f"setp.eq.{name}.s32", "pred", ("s32", a), ("s32", b), ("pred", c), negate_last=negated)
    assert got == [combine(int(x == y), z ^ negated) for x, y, z in zip(a, b, c, strict=True)]


def test_predicates_combine_and_select() -> None:
    a, b = ("pred", [0, 0, 1, 1]), ("pred", [0, 1, 0, 1])
    assert apply("and.pred", "pred", a, b) == [0, 0, 0, 1]
    assert apply("or.pred", "pred", a, b) == [0, 1, 1, 1]
    assert apply("xor.pred", "pred", a, b) == [0, 1, 1, 0]
    assert apply("not.pred", "pred", a) == [1, 1, 0, 0]
    assert apply("mov.pred", "pred", a) == [0, 0, 1, 1]
    assert apply("selp.b64", "b64", ("b64", [7] * 4), ("b64", [2**40] * 4), a) == [2**40, 2**40, 7, 7]


@pytest.mark.parametrize("result", ["u8", "s8", *INTEGER_TYPES])
@pytest.mark.parametrize("source", ["u8", "s8", *INTEGER_TYPES])
@FEW
@given(data=st.data())
def test_conversions_extend_or_cut(source: str, result: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(patterns(bits_of(source)), min_size=1, max_size=50))
    expected = [number(value, source) % (1 << bits_of(result)) for value in values]
    assert apply(f"cvt.{result}.{source}", result, (source, values)) == expected


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@FEW
@given(data=st.data())
def test_a_bit_field_is_extracted_and_extended(kind: str, data: st.DataObject) -> None:
    bits = bits_of(kind)
    place = st.integers(0, bits + 2) | patterns(32)
    triples = data.draw(st.lists(st.tuples(patterns(bits), place, place), min_size=1, max_size=50))

    def extract(value: int, position: int, length: int) -> int:
        """The definition, bit by bit."""
        position, length, signed_field = position & 0xFF, length & 0xFF, kind[0] == "s" and length & 0xFF > 0
        sign = value >> min(position + length - 1, bits - 1) & 1 if signed_field else 0
        taken = [i < length and position + i < bits for i in range(bits)]
        return sum((value >> (position + i) & 1 if taken[i] else sign) << i for i in range(bits))

    columns = [(each, [triple[i] for triple in triples]) for i, each in enumerate((kind, "u32", "u32"))]
    assert apply(f"bfe.{kind}", kind, *columns) == [extract(*triple) for triple in triples]


@pytest.mark.parametrize("bits", [32, 64])
@FEW
@given(data=st.data())
def test_a_bit_field_is_inserted(bits: int, data: st.DataObject) -> None:
    place, kind = st.integers(0, bits + 2) | patterns(32), f"b{bits}"
    rows = data.draw(st.lists(st.tuples(patterns(bits), patterns(bits), place, place), min_size=1, max_size=50))

    def insert(field: int, into: int, position: int, length: int) -> int:
        position, length = position & 0xFF, length & 0xFF
        for i in range(min(length, bits - position)):
            into = into & ~(1 << (position + i)) | (field >> i & 1) << (position + i)
        return into

    columns = [(each, [row[i] for row in rows]) for i, each in enumerate((kind, kind, "u32", "u32"))]
    assert apply(f"bfi.{kind}", kind, *columns) == [insert(*row) for row in rows]


@FEW
@given(st.lists(st.tuples(patterns(32), patterns(32), patterns(32)), min_size=1, max_size=50))
def test_a_permutation_takes_bytes_or_their_signs(rows: list[tuple[int, int, int]]) -> None:
    def permute(a: int, b: int, selector: int) -> int:
        chosen = []
        for i in range(4):
            byte = (a | b << 32).to_bytes(8, "little")[selector >> 4 * i & 7]
            chosen.append((0xFF if byte >> 7 else 0) if selector >> 4 * i & 8 else byte)
        return int.from_bytes(chosen, "little")

    columns = [("b32", [row[i] for row in rows]) for i in range(3)]
    assert apply("prmt.b32", "b32", *columns) == [permute(*row) for row in rows]


def test_a_permutation_may_have_a_constant_selector() -> None:
    out = words(2)
    launch(
        "ld.param.u64 %rd0, [a]; mov.b32 %r1, 0x33221180; mov.b32 %r2, 0x77665544; prmt.b32 %r3, %r1, %r2, 0x5410;"
        "prmt.b32 %r4, %r1, %r2, 0x9876; st.global.v2.b32 [%rd0], {%r3, %r4}; ret;",
        [out],
        threads=1,
    )
    assert [hex(value) for value in out.tolist()] == ["0x55441180", "0xff7766"]


@pytest.mark.parametrize("table", [0x00, 0x96, 0xE8, 0xCA, 0xF8, 0x01, 0xFF])
def test_logic_of_three_inputs_follows_its_table(table: int) -> None:
    """One lane per combination of three bits, beside their complement."""
    out, a, b, c = words(8), *([-(i >> bit & 1) & 0xF0F0F0F0 for i in range(8)] for bit in (2, 1, 0))
    launch(
        "ld.param.u64 %rd0, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 4, %rd0;"
        "mad.wide.u32 %rd2, %r0, 12, %rd2; ld.global.u32 %r1, [%rd2]; ld.global.u32 %r2, [%rd2+4];"
        f"ld.global.u32 %r3, [%rd2+8]; lop3.b32 %r4, %r1, %r2, %r3, {table}; st.global.u32 [%rd1], %r4; ret;",
        [out, np.array([a, b, c], dtype=np.uint32).T.copy()],
        threads=8,
        parameters=".param .u64 a, .param .u64 b",
    )
    rest = 0x0F0F0F0F * (table & 1)
    assert out.tolist() == [0xF0F0F0F0 * (table >> i & 1) | rest for i in range(8)]


def test_a_narrow_result_fills_its_register() -> None:
    """cvt and ld extend by the sign of the type into a wider register."""
    text = """
        .version 9.0
        .target sm_80
        .visible .entry k(.param .u64 a) { .reg .b32 %r<9>; .reg .b64 %rd<9>;
        ld.param.u64 %rd1, [a]; ld.global.s8 %r1, [%rd1]; ld.global.u8 %r2, [%rd1]; cvt.s8.s32 %r3, %r2;
        st.global.v2.u32 [%rd1+8], {%r1, %r2}; st.global.u32 [%rd1+16], %r3; ret; }"""
    memory = np.zeros(5, dtype=np.uint32)
    memory[0] = 0x1234_56F0
    emulate.run(text, (1, 1, 1), (1, 1, 1), 0, [memory])
    assert memory.tolist() == [0x1234_56F0, 0, 0xFFFF_FFF0, 0xF0, 0xFFFF_FFF0]


def test_halves_are_packed_lowest_first() -> None:
    text = """
        .version 9.0
        .target sm_80
        .visible .entry k(.param .u64 a) { .reg .b32 %r<9>; .reg .b64 %rd<9>;
        ld.param.u64 %rd1, [a]; ld.global.v2.u32 {%r1, %r2}, [%rd1]; mov.b64 %rd2, {%r2, %r1};
        mov.b64 {_, %r3}, %rd2; st.global.u64 [%rd1+8], %rd2; st.global.u32 [%rd1+16], %r3; ret; }"""
    memory = np.array([1, 2, 0, 0, 0], dtype=np.uint32)
    emulate.run(text, (1, 1, 1), (1, 1, 1), 0, [memory])
    assert memory.tolist() == [1, 2, 2, 1, 1]
