"""Data types in NumPy: rounding to nearest even and exact conversion back, by definition."""

from __future__ import annotations

from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.ir.dtypes import PRECISIONS, from_float32, numpy_dtype, to_float32
from codegen.ir.layer_spec import DataType

DATA_TYPES: tuple[DataType, ...] = get_args(DataType)
data_types = st.sampled_from(DATA_TYPES)


def every_value(data_type: DataType) -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype(data_type))


@pytest.mark.parametrize("data_type", ["float16", "bfloat16"])
def test_every_value_survives_the_way_there_and_back(data_type: DataType) -> None:
    held = every_value(data_type)
    wide = to_float32(held, data_type)
    back = from_float32(wide, data_type)
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(back[number].view(np.uint16), held[number].view(np.uint16))
    assert np.isnan(to_float32(back, data_type)[~number]).all()
    assert np.isnan(wide).any()


@pytest.mark.parametrize("data_type", DATA_TYPES)
def test_a_precision_is_that_of_the_type(data_type: DataType) -> None:
    precision = PRECISIONS[data_type]
    one_up = from_float32(np.array([1], np.float32), data_type).view(f"u{numpy_dtype(data_type).itemsize}") + 1
    after_one = to_float32(one_up.view(numpy_dtype(data_type)), data_type).item()
    assert after_one == 1 + 2 * precision.unit_roundoff
    smallest = to_float32(np.ones_like(one_up).view(numpy_dtype(data_type)), data_type).item()
    assert smallest == precision.smallest_subnormal
    infinity = from_float32(np.array([np.inf], np.float32), data_type).view(one_up.dtype)
    assert to_float32((infinity - 1).view(numpy_dtype(data_type)), data_type).item() == precision.largest


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from(["float16", "bfloat16"]))
def test_a_rounded_value_is_the_nearest_and_the_even_one_of_two(value: float, data_type: DataType) -> None:
    held = from_float32(np.array([value], np.float32), data_type)
    bits, nearest = int(held.view(np.uint16)[0]), to_float32(held, data_type).item()
    precision = PRECISIONS[data_type]
    step = precision.largest * precision.unit_roundoff * 2 / (2 - 2 * precision.unit_roundoff)
    if abs(value) >= precision.largest + step / 2:
        assert nearest == np.copysign(np.inf, value)
        return
    error = abs(Fraction(nearest) - Fraction(value))
    for neighbour in (bits - 1, bits + 1):
        other = to_float32(np.array([neighbour % (1 << 16)], np.uint16).view(held.dtype), data_type).item()
        if np.isfinite(other):
            distance = abs(Fraction(other) - Fraction(value))
            assert error < distance or (error == distance and bits % 2 == 0)


def test_half_a_step_goes_to_the_even_neighbour_and_more_goes_up() -> None:
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3.4e38], np.float32)
    rounded = to_float32(from_float32(values, "bfloat16"), "bfloat16")
    np.testing.assert_array_equal(rounded, [1, 1 + 2**-6, 1 + 2**-7, np.inf])


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000])
@pytest.mark.parametrize("data_type", DATA_TYPES)
def test_nan_stays_nan_whatever_its_bits(bits: int, data_type: DataType) -> None:
    value = np.array([bits], np.uint32).view(np.float32)
    assert np.isnan(to_float32(from_float32(value, data_type), data_type)).all()


@given(data_types)
def test_an_array_of_another_type_is_an_error(data_type: DataType) -> None:
    with pytest.raises(ValueError, match="float64"):
        from_float32(np.zeros(1), data_type)
    with pytest.raises(ValueError, match="int32"):
        to_float32(np.zeros(1, np.int32), data_type)
