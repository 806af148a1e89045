"""Integer instructions one at a time, against exact arithmetic on Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen import emulate
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
