"""Float instructions one at a time, against exact arithmetic on fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.single_instruction import COMPARISONS, FEW, apply, as_bits, as_float, bits_of, number, patterns, rounded

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
    return as_bits(a) | (signs & 1) << 31, as_bits(b) | (signs >> 1 & 1) << 31, c | (signs >> 2 & 1) << 31


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
            assert same(floats(apply("rcp.rn.f32", "f32", arguments[0])), (1 / a).tolist())
            assert same(floats(apply("sqrt.rn.f32", "f32", arguments[0])), np.sqrt(a).tolist())
            assert same(floats(apply("copysign.f32", "f32", *arguments)), np.copysign(b, a).tolist())


def test_minimum_and_maximum_prefer_numbers_and_order_the_zeros() -> None:
    nan, a, b = (
        math.nan,
        [math.nan, 1.0, -0.0, 0.0, -0.0, 2.0, math.nan],
        [1.0, math.nan, 0.0, -0.0, -0.0, -3.0, math.nan],
    )
    arguments = [("f32", [as_bits(value) for value in values]) for values in (a, b)]
    assert same(floats(apply("max.f32", "f32", *arguments)), [1.0, 1.0, 0.0, 0.0, -0.0, 2.0, nan])
    assert same(floats(apply("min.f32", "f32", *arguments)), [1.0, 1.0, -0.0, -0.0, -0.0, -3.0, nan])
    assert same(floats(apply("max.NaN.f32", "f32", *arguments)), [nan, nan, 0.0, 0.0, -0.0, 2.0, nan])
    assert same(floats(apply("min.NaN.f32", "f32", *arguments)), [nan, nan, -0.0, -0.0, -0.0, -3.0, nan])
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
        ones = [0xFFFFFFFF * each for each in ordered]
        assert apply(f"set.{name}.u32.f32", "u32", *arguments) == ones, name
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
