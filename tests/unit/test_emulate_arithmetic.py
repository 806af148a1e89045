"""One instruction at a time, against exact arithmetic on Python's integers and fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from codegen import emulate

REGISTER = {"b16": "%rs", "b32": "%r", "b64": "%rd", "pred": "%p"}
FEW = settings(max_examples=12, deadline=None)


def bits_of(kind: str) -> int:
    return 32 if kind == "pred" else int(kind[1:])


def apply(opcode: str, result: str, *sources: tuple[str, Sequence[int]], negate_last: bool = False) -> list[int]:
    """Runs `opcode` once per lane; values are bit patterns, `result` and the sources' names are PTX types."""
    loads, names = [], []
    for i, (kind, _) in enumerate(sources, start=1):
        width = bits_of(kind)
        loads.append(f"ld.param.u64 %rd1{i}, [p{i}]; mad.wide.u32 %rd1{i}, %r19, {width // 8}, %rd1{i};")
        name = f"{REGISTER['b32' if kind == 'pred' else f'b{max(width, 16)}']}{i}"
        loads.append(f"ld.global.{'b32' if kind == 'pred' else f'u{width}'} {name}, [%rd1{i}];")
        if kind == "pred":
            loads.append(f"setp.ne.b32 %p{i}, {name}, 0;")
            name = f"%p{i}"
        names.append(name)
    if negate_last:
        names[-1] = "!" + names[-1]
    width = bits_of(result)
    target = REGISTER["pred" if result == "pred" else f"b{max(width, 16)}"] + "0"
    stored = "%r0" if result == "pred" else target
    text = f"""
        .version 9.0
        .target sm_80
        .visible .entry k({", ".join(f".param .u64 p{i}" for i in range(len(sources) + 1))}) {{
        .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<20>; .reg .b64 %rd<20>;
        mov.u32 %r19, %tid.x; ld.param.u64 %rd10, [p0]; mad.wide.u32 %rd10, %r19, {width // 8}, %rd10;
        {" ".join(loads)}
        {opcode} {target}, {", ".join(names)};
        {"selp.u32 %r0, 1, 0, %p0;" if result == "pred" else ""}
        st.global.u{width} [%rd10], {stored}; ret; }}"""
    lanes = len(sources[0][1])
    output = np.zeros(lanes, dtype=f"u{width // 8}")
    inputs: list[NDArray[Any]] = [np.array(values, dtype=f"u{bits_of(kind) // 8}") for kind, values in sources]
    emulate.run(text, (1, 1, 1), (lanes, 1, 1), 0, [output, *inputs])
    return [int(value) for value in output]


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def number(value: int, kind: str) -> int:
    return signed(value, bits_of(kind)) if kind[0] == "s" else value


def patterns(bits: int) -> st.SearchStrategy[int]:
    """Bit patterns, often at an edge."""
    edges = [0, 1, 2, 3, (1 << bits) - 1, (1 << bits) - 2, 1 << (bits - 1), (1 << (bits - 1)) - 1, 1 << (bits // 2)]
    return st.sampled_from(edges) | st.integers(0, (1 << bits) - 1)


def truncated_quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


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


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


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


# Floats.


def as_bits(value: float) -> int:
    with np.errstate(over="ignore"):
        return int(np.float32(value).view(np.uint32))


def as_float(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))


def rounded(value: Fraction) -> float:
    """A fraction to the nearest float32, ties to even, subnormal and infinite results included."""
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    quantum = Fraction(2) ** max(exponent - 23, -149)
    result = round(value / quantum) * quantum
    return math.copysign(float(result) if abs(result) < 2**128 else math.inf, value)


FINITE = patterns(32).filter(lambda bits: bits >> 23 & 0xFF != 0xFF)


@st.composite
def nearly_ties(draw: st.DrawFn) -> tuple[int, int, int]:
    """a * b + c a hair beside the middle between two floats: what rounding to 53 bits first gets wrong."""
    c = draw(st.integers(1 << 22, 220 << 23) | st.integers(1 << 22, 2 << 23))
    half = max(c >> 23, 1) - 151  # exponent of half the distance to the next float
    steps = draw(st.integers(1, 255)) * draw(st.sampled_from([1, -1]))
    scale = half // 2 + draw(st.integers(-10, 10))
    a, b = 2.0**scale * (1 + steps * 2.0**-23), 2.0 ** (half - scale) * (1 - steps * 2.0**-23)
    signs = draw(st.integers(0, 7))
    return tuple(bits | (signs >> i & 1) << 31 for i, bits in enumerate((as_bits(a), as_bits(b), c)))  # type: ignore[return-value]


def check_fma(triples: list[tuple[int, int, int]]) -> None:
    columns = [("f32", [triple[i] for triple in triples]) for i in range(3)]
    for triple, got in zip(triples, apply("fma.rn.f32", "f32", *columns), strict=True):
        a, b, c = map(as_float, triple)
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        # A sum of zero is exact in float64, its sign included.
        assert got == as_bits(rounded(exact) if exact else a * b + c), [hex(bits) for bits in triple]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(FINITE, FINITE, FINITE), min_size=1, max_size=50))
def test_fma_rounds_once(triples: list[tuple[int, int, int]]) -> None:
    check_fma(triples)


@settings(max_examples=60, deadline=None)
@given(st.lists(nearly_ties(), min_size=1, max_size=50))
def test_fma_rounds_once_beside_a_tie(triples: list[tuple[int, int, int]]) -> None:
    check_fma(triples)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60 << 23), st.integers(40 << 23, 67 << 23), st.integers(0, 1 << 24)), min_size=1)
)
def test_fma_rounds_once_to_subnormal_results(triples: list[tuple[int, int, int]]) -> None:
    check_fma(triples)


def test_rounding_twice_would_be_wrong() -> None:
    """The case that the tests above are about: 1 + 2^-23 + 2^-24 - 2^-70 is below the tie, float64 puts it on it."""
    a, b, c = 2.0**-12 * (1 + 2.0**-23), 2.0**-12 * (1 - 2.0**-23), 1 + 2.0**-23
    assert as_bits(np.float64(a) * b + c) == as_bits(1 + 2.0**-22)
    (got,) = apply("fma.rn.f32", "f32", *(("f32", [as_bits(value)]) for value in (a, b, c)))
    assert got == as_bits(1 + 2.0**-23)


SPECIAL = [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 1e-45, 3.4e38]


def floats(values: Sequence[int]) -> list[float]:
    return [as_float(value) for value in values]


def same(got: Sequence[float], expected: Sequence[float]) -> bool:
    """Equal in bits, but any NaN is like any other."""
    pairs = zip(got, expected, strict=True)
    return all((math.isnan(g) and math.isnan(e)) or as_bits(g) == as_bits(e) for g, e in pairs)


def test_special_values_follow_ieee() -> None:
    triples = [(a, b, c) for a in SPECIAL for b in SPECIAL for c in SPECIAL]
    columns = [("f32", [as_bits(triple[i]) for triple in triples]) for i in range(3)]
    for start in range(0, len(triples), 81):
        part = [(kind, values[start : start + 81]) for kind, values in columns]
        a, b, c = (np.array(floats(values)) for _, values in part)
        with np.errstate(all="ignore"):
            expected = (a * b + c).astype(np.float32).tolist()
        assert same(floats(apply("fma.rn.f32", "f32", *part)), expected)


@pytest.mark.parametrize("suffix", ["f32", "rn.f32"])
def test_float_arithmetic_is_rounded_to_nearest(suffix: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 2**32, (2, 500), dtype=np.uint32).view(np.float32)
    arguments = [("f32", values.view(np.uint32).tolist()) for values in (a, b)]
    with np.errstate(all="ignore"):
        for name, expected in (("add", a + b), ("sub", a - b), ("mul", a * b)):
            assert same(floats(apply(f"{name}.{suffix}", "f32", *arguments)), expected.tolist()), name
        if suffix == "rn.f32":
            assert same(floats(apply("div.rn.f32", "f32", *arguments)), (a / b).tolist())


def test_minimum_and_maximum_prefer_numbers_and_order_the_zeros() -> None:
    nan, a, b = (
        math.nan,
        [math.nan, 1.0, -0.0, 0.0, -0.0, 2.0, math.nan],
        [1.0, math.nan, 0.0, -0.0, -0.0, -3.0, math.nan],
    )
    arguments = [("f32", [as_bits(value) for value in values]) for values in (a, b)]
    assert same(floats(apply("max.f32", "f32", *arguments)), [1.0, 1.0, 0.0, 0.0, -0.0, 2.0, nan])
    assert same(floats(apply("min.f32", "f32", *arguments)), [1.0, 1.0, -0.0, -0.0, -0.0, -3.0, nan])
    assert same(floats(apply("neg.f32", "f32", arguments[0])), [nan, -1.0, 0.0, -0.0, 0.0, -2.0, nan])
    assert same(floats(apply("abs.f32", "f32", arguments[1])), [1.0, nan, 0.0, 0.0, 0.0, 3.0, nan])


def test_float_comparisons_know_nan() -> None:
    pairs = [(a, b) for a in (1.0, 2.0, math.nan) for b in (1.0, 2.0, math.nan)]
    arguments = [("f32", [as_bits(pair[i]) for pair in pairs]) for i in (0, 1)]
    unordered = [math.isnan(a) or math.isnan(b) for a, b in pairs]
    for name, compare in COMPARISONS.items():
        ordered = [compare(a, b) and not u for (a, b), u in zip(pairs, unordered, strict=True)]
        assert apply(f"setp.{name}.f32", "pred", *arguments) == ordered, name
        either = [compare(a, b) or u for (a, b), u in zip(pairs, unordered, strict=True)]
        assert apply(f"setp.{name}u.f32", "pred", *arguments) == either, name
    assert apply("setp.nan.f32", "pred", *arguments) == unordered
    assert apply("setp.num.f32", "pred", *arguments) == [not u for u in unordered]


@FEW
@given(data=st.data())
@pytest.mark.parametrize("source", ["u8", "s16", "u32", "s32", "u64", "s64"])
def test_integers_become_the_nearest_float(source: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(patterns(bits_of(source)), min_size=1, max_size=50))
    expected = [rounded(Fraction(number(value, source))) for value in values]
    assert floats(apply(f"cvt.rn.f32.{source}", "f32", (source, values))) == expected


def round_up(value: float) -> int:
    return math.ceil(value)


@pytest.mark.parametrize(
    ("mode", "whole"), [("rzi", math.trunc), ("rni", round), ("rmi", math.floor), ("rpi", round_up)]
)
@pytest.mark.parametrize("result", ["u8", "s16", "u32", "s32", "u64", "s64"])
def test_floats_become_clamped_integers(mode: str, whole: Callable[[float], int], result: str) -> None:
    values = [
        0.0,
        -0.0,
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        1e-45,
        255.75,
        -1e9,
        3e9,
        2.0**31,
        2.0**32,
        2.0**63,
        2.0**64,
        -(2.0**63),
    ]
    values += [1e30, -1e30, math.inf, -math.inf, math.nan]
    bits = bits_of(result)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if result[0] == "s" else (0, (1 << bits) - 1)

    def convert(value: float) -> int:
        if math.isnan(value):
            return 1 << 63 if bits == 64 else 0
        if math.isinf(value):
            return high if value > 0 else low
        return min(max(whole(value), low), high)

    got = apply(f"cvt.{mode}.{result}.f32", result, ("f32", [as_bits(value) for value in values]))
    assert got == [convert(as_float(as_bits(value))) % (1 << bits) for value in values]


def test_half_floats_convert_both_ways() -> None:
    values = [0.0, -1.0, 65504.0, 65520.0, 6e-8, 0.1, math.inf]
    halves = apply("cvt.rn.f16.f32", "f16", ("f32", [as_bits(value) for value in values]))
    with np.errstate(over="ignore"):
        expected = np.array(values, dtype=np.float32).astype(np.float16)
    assert halves == expected.view(np.uint16).tolist()
    assert floats(apply("cvt.f32.f16", "f32", ("f16", halves))) == expected.astype(np.float64).tolist()
