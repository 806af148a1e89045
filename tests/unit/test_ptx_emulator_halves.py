"""float16 and bfloat16 one instruction at a time, against exact arithmetic on fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.errors import EmulationError
from tests.unit.bench import launch, words
from tests.unit.single_instruction import COMPARISONS, FEW, apply, as_bits, as_float, patterns, rounded

SPECIAL = [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 2.0**-24, 65504.0, -65504.0]
NAN = 0x7FFF
"""Stands for every NaN in the results below."""

FINITE = patterns(16).filter(lambda bits: bits >> 10 & 0x1F != 0x1F)
Pairs = list[tuple[int, int]]


def half(value: float) -> int:
    """The bits of a value that float16 holds."""
    return NAN if math.isnan(value) else int(np.float16(value).view(np.uint16))


def value_of(bits: int) -> float:
    return float(np.uint16(bits).view(np.float16))


def rounded_half(value: Fraction) -> int:
    return half(rounded(value, digits=11, smallest=-24, end=16))


def rounded_bfloat(value: Fraction) -> int:
    return as_bits(rounded(value, digits=8, smallest=-133)) >> 16


def with_one_nan(halves: Sequence[int]) -> list[int]:
    return [NAN if bits & 0x7FFF > 0x7C00 else bits for bits in halves]


def packed(lower: Sequence[int], upper: Sequence[int]) -> list[int]:
    return [low | high << 16 for low, high in zip(lower, upper, strict=True)]


def unpacked(pairs: Sequence[int]) -> list[int]:
    """All lower halves, then all upper ones."""
    return [pair & 0xFFFF for pair in pairs] + [pair >> 16 for pair in pairs]


def apply_both(opcode: str, *sources: Sequence[int]) -> list[int]:
    """The results of `opcode`.f16, which are those of `opcode`.f16x2 in either half."""
    single = with_one_nan(apply(f"{opcode}.f16", "f16", *(("f16", values) for values in sources)))
    backwards = [list(reversed(values)) for values in sources]
    pairs = [("f16x2", packed(values, back)) for values, back in zip(sources, backwards, strict=True)]
    assert with_one_nan(unpacked(apply(f"{opcode}.f16x2", "f16x2", *pairs))) == single + single[::-1]
    return single


def check_fma(triples: list[tuple[int, int, int]]) -> None:
    for triple, got in zip(triples, apply_both("fma.rn", *zip(*triples, strict=True)), strict=True):
        a, b, c = map(value_of, triple)
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        # A sum of zero is exact in float64, its sign included.
        assert got == (rounded_half(exact) if exact else half(a * b + c)), [hex(bits) for bits in triple]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(FINITE, FINITE, FINITE), min_size=1, max_size=50))
def test_fma_rounds_once(triples: list[tuple[int, int, int]]) -> None:
    check_fma(triples)


@st.composite
def far_apart(draw: st.DrawFn) -> tuple[int, int, int]:
    """A product far below a large sum's last bit, or far above a small addend: where 53 bits are not enough."""
    tiny, huge = st.integers(0, 0x03FF), st.integers(0x7800, 0x7BFF)
    a, b, c = draw(st.sampled_from([(tiny, tiny, huge), (huge, huge, tiny), (tiny, huge, huge)]))
    signs = draw(st.integers(0, 7))
    return draw(a) | (signs & 1) << 15, draw(b) | (signs & 2) << 14, draw(c) | (signs & 4) << 13


@settings(max_examples=60, deadline=None)
@given(st.lists(far_apart(), min_size=1, max_size=50))
def test_fma_rounds_once_where_the_sum_has_more_than_53_bits(triples: list[tuple[int, int, int]]) -> None:
    check_fma(triples)


@st.composite
def nearly_ties(draw: st.DrawFn) -> tuple[int, int, int]:
    """a * b + c a hair beside the middle between two halves: what rounding to 24 bits first gets wrong."""
    exponent, shift, steps = draw(st.integers(-2, 10)), draw(st.integers(-6, 0)), draw(st.integers(1, 7))
    c = half(2.0**exponent) | draw(st.integers(0, 0x3FF))
    sign = draw(st.sampled_from([1, -1]))
    a, b = 2.0**shift * (1 + sign * steps * 2.0**-10), 2.0 ** (exponent - 11 - shift) * (1 - sign * steps * 2.0**-10)
    signs = draw(st.integers(0, 7))
    return half(a) | (signs & 1) << 15, half(b) | (signs & 2) << 14, c | (signs & 4) << 13


@settings(max_examples=60, deadline=None)
@given(st.lists(nearly_ties(), min_size=1, max_size=50))
def test_fma_rounds_once_beside_a_tie(triples: list[tuple[int, int, int]]) -> None:
    check_fma(triples)


def test_rounding_to_float32_first_would_be_wrong() -> None:
    """1 + 2^-10 + 2^-11 - 2^-31 is below the tie, float32 puts it on it."""
    a, b, c = 2.0**-5 * (1 + 2.0**-10), 2.0**-6 * (1 - 2.0**-10), 1 + 2.0**-10
    assert half(float(np.float32(a * b + c))) == half(1 + 2.0**-9)
    assert apply_both("fma.rn", [half(a)], [half(b)], [half(c)]) == [half(c)]


def test_rounding_the_product_first_would_be_wrong() -> None:
    """(1 + 2^-10) * (1 + 2^-10) - 1 - 2^-9 is 2^-20; the product alone in float16 is 1 + 2^-9."""
    assert apply_both("fma.rn", [0x3C01], [0x3C01], [half(-1 - 2**-9)]) == [half(2.0**-20)]


def test_special_values_follow_ieee() -> None:
    triples = [(a, b, c) for a in SPECIAL for b in SPECIAL for c in SPECIAL]
    for start in range(0, len(triples), 100):
        a, b, c = np.array(triples[start : start + 100]).T
        with np.errstate(all="ignore"):
            expected = [half(value) for value in (a * b + c).astype(np.float16)]
        assert apply_both("fma.rn", *([half(value) for value in column] for column in (a, b, c))) == expected


@pytest.mark.parametrize("suffix", ["", ".rn"])
@settings(max_examples=20, deadline=None)
@given(pairs=st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=50))
def test_half_arithmetic_is_rounded_to_nearest(suffix: str, pairs: Pairs) -> None:
    a, b = ([pair[i] for pair in pairs] for i in (0, 1))
    operations: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
        "add": Fraction.__add__,
        "sub": Fraction.__sub__,
        "mul": Fraction.__mul__,
    }
    for name, compute in operations.items():
        for x, y, got in zip(a, b, apply_both(name + suffix, a, b), strict=True):
            exact = compute(Fraction(value_of(x)), Fraction(value_of(y)))
            # The sign of a zero is not a fraction's to say.
            assert got & (0xFFFF if exact else 0x7FFF) == rounded_half(exact), (name, hex(x), hex(y))


def test_minimum_and_maximum_treat_nan_as_their_form_says() -> None:
    values = [math.nan, 1.0, -0.0, 0.0, -0.0, 2.0, math.nan, 2.0**-24, math.inf]
    others = [1.0, math.nan, 0.0, -0.0, -0.0, -3.0, math.nan, 0.0, math.nan]
    a, b = [half(value) for value in values], [half(value) for value in others]

    def expect(opcode: str, expected: list[float]) -> None:
        assert apply_both(opcode, a, b) == [half(value) for value in expected], opcode

    tiny, nan, infinite = 2.0**-24, math.nan, math.inf
    expect("max", [1.0, 1.0, 0.0, 0.0, -0.0, 2.0, nan, tiny, infinite])
    expect("min", [1.0, 1.0, -0.0, -0.0, -0.0, -3.0, nan, 0.0, infinite])
    expect("max.NaN", [nan, nan, 0.0, 0.0, -0.0, 2.0, nan, tiny, nan])
    expect("min.NaN", [nan, nan, -0.0, -0.0, -0.0, -3.0, nan, 0.0, nan])


def test_sign_changes_keep_the_other_bits() -> None:
    bits = [half(value) for value in SPECIAL if not math.isnan(value)]
    assert apply_both("neg", bits) == [value ^ 0x8000 for value in bits]
    assert apply_both("abs", bits) == [value & 0x7FFF for value in bits]


def test_half_comparisons_know_nan() -> None:
    pairs = [(a, b) for a in SPECIAL for b in SPECIAL]
    arguments = [[half(pair[i]) for pair in pairs] for i in (0, 1)]
    singles = [("f16", values) for values in arguments]
    doubles = [("f16x2", packed(values, values[::-1])) for values in arguments]
    for name, compare in COMPARISONS.items():
        ordered = [compare(a, b) and not (math.isnan(a) or math.isnan(b)) for a, b in pairs]
        assert apply(f"setp.{name}.f16", "pred", *singles) == ordered, name
        assert apply(f"set.{name}.u16.f16", "u16", *singles) == [0xFFFF * each for each in ordered], name
        ones = [0x3C00 * each for each in ordered]
        assert apply(f"set.{name}.f16.f16", "f16", *singles) == ones, name
        assert unpacked(apply(f"set.{name}.f16x2.f16x2", "f16x2", *doubles)) == ones + ones[::-1], name


TIES = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519.0, 65520.0, 2.0**-25, 3 * 2.0**-25, 2.0**-24, 2.0**-26, 1e30, 1e-45]
BFLOAT_TIES = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.3895e38, 3.3961e38, 2.0**-134, 3 * 2.0**-134, 2.0**-133, 1e-45]
SINGLES = patterns(32).filter(lambda bits: bits >> 23 & 0xFF != 0xFF) | st.sampled_from(
    [as_bits(sign * value) for value in TIES + BFLOAT_TIES for sign in (1, -1)]
)


@pytest.mark.parametrize(("kind", "nearest"), [("f16", rounded_half), ("bf16", rounded_bfloat)])
@settings(max_examples=40, deadline=None)
@given(values=st.lists(SINGLES, min_size=1, max_size=50))
def test_floats_become_the_nearest_half(kind: str, nearest: Callable[[Fraction], int], values: list[int]) -> None:
    numbers = [Fraction(as_float(bits)) for bits in values]
    expected = [nearest(n) if n else bits >> 16 & 0x8000 for n, bits in zip(numbers, values, strict=True)]
    assert apply(f"cvt.rn.{kind}.f32", kind, ("f32", values)) == expected
    upper, lower = ("f32", values), ("f32", values[::-1])
    assert unpacked(apply(f"cvt.rn.{kind}x2.f32", f"{kind}x2", upper, lower)) == expected[::-1] + expected


def test_infinity_and_nan_stay_what_they_are_in_half() -> None:
    values = [as_bits(value) for value in (math.inf, -math.inf, math.nan)] + [0x7F800001, 0xFFFFFFFF]
    infinities = {"f16": [0x7C00, 0xFC00], "bf16": [0x7F80, 0xFF80]}
    for kind, (plus, minus) in infinities.items():
        got = apply(f"cvt.rn.{kind}.f32", kind, ("f32", values))
        assert got[:2] == [plus, minus]
        assert all(bits & 0x7FFF > plus for bits in got[2:])


@FEW
@given(values=st.lists(patterns(32), min_size=1, max_size=50))
def test_a_bfloat16_may_be_cut_instead_of_rounded(values: list[int]) -> None:
    expected = [NAN if bits & 0x7FFFFFFF > 0x7F800000 else bits >> 16 for bits in values]
    assert apply("cvt.rz.bf16.f32", "bf16", ("f32", values)) == expected


def test_every_half_is_a_float() -> None:
    halves = list(range(1 << 16))
    for start in range(0, 1 << 16, 1024):
        part = halves[start : start + 1024]
        got = [as_float(bits) for bits in apply("cvt.f32.f16", "f32", ("f16", part))]
        assert [half(value) for value in got] == with_one_nan(part)
        assert apply("cvt.f32.bf16", "f32", ("bf16", part)) == [bits << 16 for bits in part]


def test_a_conversion_may_clamp() -> None:
    values = [-math.inf, -1.0, -0.0, 0.0, 2.0**-24, 0.5, 1.0, 1.5, math.inf, math.nan]
    argument = ("f32", [as_bits(value) for value in values])
    saturated = [0, 0, 0, 0, 2.0**-24, 0.5, 1, 1, 1, 0]
    assert apply("cvt.rn.sat.f16.f32", "f16", argument) == [half(value) for value in saturated]
    assert apply("cvt.sat.f32.f32", "f32", argument) == [as_bits(value) for value in saturated]
    rectified = [0, 0, 0, 0, 2.0**-24, 0.5, 1, 1.5, math.inf, math.nan]
    expected = [half(value) for value in rectified]
    assert with_one_nan(apply("cvt.rn.relu.f16.f32", "f16", argument)) == expected
    pairs = apply("cvt.rn.relu.f16x2.f32", "f16x2", argument, ("f32", argument[1][::-1]))
    assert with_one_nan(unpacked(pairs)) == expected[::-1] + expected
    brain = [NAN if math.isnan(value) else as_bits(value) >> 16 for value in rectified]
    assert apply("cvt.rn.relu.bf16.f32", "bf16", argument) == brain


def test_two_halves_are_packed_lowest_first() -> None:
    out = words(6)
    launch(
        "ld.param.u64 %rd0, [a]; mov.b16 %rs1, 0x1234; mov.b32 %r1, {%rs1, 0x5678}; mov.b32 {_, %rs2}, %r1;"
        "mov.b32 %r5, 0x3C00BC00; mov.b32 {%rs3, %rs4}, %r5; mov.b32 %r2, {%rs2, %rs2}; mov.b32 %r3, {%rs4, %rs3};"
        "mov.b32 %f1, {0, %rs4}; cvt.u32.u16 %r4, %rs2; st.global.v4.b32 [%rd0], {%r1, %r2, %r3, %r4};"
        "st.global.f32 [%rd0+16], %f1; ret;",
        [out],
        threads=1,
    )
    assert out.tolist() == [0x56781234, 0x56785678, 0xBC003C00, 0x5678, 0x3C000000, 0]


def test_only_the_lanes_that_run_change_their_pair() -> None:
    out = np.full(4, 0x3C003C00, dtype=np.uint32)
    launch(
        "ld.param.u64 %rd0, [a]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 4, %rd0; ld.global.b32 %r1, [%rd1];"
        "setp.lt.u32 %p1, %r0, 2; @%p1 add.f16x2 %r1, %r1, %r1; @!%p1 fma.rn.f16x2 %r1, %r1, %r1, %r1;"
        "@%p1 neg.f16x2 %r1, %r1; st.global.b32 [%rd1], %r1; ret;",
        [out],
    )
    assert out.tolist() == [0xC000C000, 0xC000C000, 0x40004000, 0x40004000]


@pytest.mark.parametrize(
    "instruction",
    [
        "fma.rn.f16x2 %r1, %r2, 0x3C003C00, %r1",
        "add.f16 %rs1, %rs2, 1.0",
        "mov.f16 %rs1, %rs2",
        "ld.shared.f16x2 %r1, [%r2]",
        "fma.rn.f16 %r1, %r2, %r2, %r1",
        "cvt.rn.sat.f16x2.f32 %r1, %f1, %f1",
        "cvt.rn.f16.f32 %r1, %f1",
        "setp.lt.f16x2 %p1, %r1, %r2",
        "set.lt.f16x2.f32 %r1, %f1, %f2",
        "prmt.b32.f4e %r1, %r2, %r3, %r4",
        "add.bf16 %rs1, %rs2, %rs3",
    ],
)
def test_what_ptx_does_not_have_for_halves_is_an_error(instruction: str) -> None:
    with pytest.raises(EmulationError, match="line 7: `"):
        launch(f"{instruction}; ret;", [words(1)])
