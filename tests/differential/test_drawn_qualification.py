"""Layers as qualification draws them give the same bits both ways; the SASS emulator stands in for the GPU."""

from __future__ import annotations

from itertools import product
from typing import get_args

from codegen.ir.layer_spec import (
    DataType,
    Quantize,
    Scale,
    is_bounded,
    is_gated,
    is_pooled,
)
from codegen.toolchain.tools import ToolLimits, find_toolchain
from farm.qualification.build import build_shape
from farm.qualification.corpus import (
    BOUNDED_EVERY,
    BY_PLACE_EVERY,
    GATED_EVERY,
    IS_OF_KIND,
    LINEAR_EVERY,
    LINEAR_KINDS,
    POOLED_EVERY,
    SPLIT_EVERY,
    draw_shape,
    mask_name,
)
from tests.emulated_comparator import result_of

SPLIT_SHAPE = 16
"""One whose channels are split over a cluster."""
GATED_SHAPE = 5
POOLED_SHAPE = 11
BOUNDED_SHAPE, BOUNDED_SPLIT_SHAPE = 9, 4
LINEAR_SHAPES = 13, 17, 31
LIMITS = ToolLimits(120)


def test_one_float32_shape_of_three_is_split_over_clusters_and_its_layers_give_the_same_bits_both_ways() -> None:
    shapes = [each for number in range(30) if (each := draw_shape(number, "float32"))]
    assert {shape.number for shape in shapes if shape.tiling.cluster > 1} == {
        shape.number for shape in shapes if shape.number % SPLIT_EVERY == 1
    }
    built = build_shape(SPLIT_SHAPE, "float32", 8, "sm_90", find_toolchain(), LIMITS)
    assert built.shape is not None
    assert built.shape.tiling.cluster > 1
    masks = {mask_name(layer.variant) for layer in built.layers}
    assert {"one share of the channels empty", "one share of the channels left"} <= masks
    assert len(built.layers) == 8
    assert result_of(built).tally.wrong == ()


def test_one_shape_of_four_has_a_pool_and_its_layers_give_the_same_bits_both_ways() -> None:
    for data_type in get_args(DataType):
        shapes = [each for number in range(30) if (each := draw_shape(number, data_type))]
        split = {each.number for each in shapes if each.tiling.cluster > 1 or is_gated(each.spec)}
        assert {each.number for each in shapes if is_pooled(each.spec)} == {
            each.number for each in shapes if each.number % POOLED_EVERY == 3 and each.number not in split
        }
    built = build_shape(POOLED_SHAPE, "float32", 8, "sm_90", find_toolchain(), LIMITS)
    assert built.shape is not None
    assert is_pooled(built.shape.spec)
    assert len(built.layers) == 8
    assert result_of(built).tally.wrong == ()


def test_one_shape_of_five_has_gates_and_its_layers_give_the_same_bits_both_ways() -> None:
    numbers: dict[DataType, set[int]] = {"float32": set(), "bfloat16": set()}
    for data_type, gated in numbers.items():
        shapes = [each for number in range(30) if (each := draw_shape(number, data_type))]
        gated |= {shape.number for shape in shapes if is_gated(shape.spec)}
        assert gated == {shape.number for shape in shapes if shape.number % GATED_EVERY == 0}
    assert any(shape.tiling.cluster > 1 for number in numbers["float32"] if (shape := draw_shape(number, "float32")))
    built = build_shape(GATED_SHAPE, "float32", 8, "sm_90", find_toolchain(), LIMITS)
    assert built.shape is not None
    assert is_gated(built.shape.spec)
    assert len(built.layers) == 8
    assert result_of(built).tally.wrong == ()


def test_one_float32_shape_of_five_has_bounds_and_its_layers_give_the_same_bits_both_ways() -> None:
    shapes = [each for number in range(30) if (each := draw_shape(number, "float32"))]
    bounded = [each for each in shapes if is_bounded(each.spec)]
    assert bounded == [each for each in shapes if each.number % BOUNDED_EVERY == BOUNDED_EVERY - 1]
    assert {each.tiling.cluster > 1 for each in bounded} == {True, False}
    for number in (BOUNDED_SHAPE, BOUNDED_SPLIT_SHAPE):
        built = build_shape(number, "float32", 8, "sm_90", find_toolchain(), LIMITS)
        assert built.shape in bounded
        assert len(built.layers) == 8
        assert result_of(built).tally.wrong == ()


def test_every_data_type_has_scalings_and_roundings_and_float32_layers_give_the_same_bits_both_ways() -> None:
    for data_type in get_args(DataType):
        shapes = [each for number in range(60) if (each := draw_shape(number, data_type))]
        assert {Scale, Quantize} <= {type(step) for each in shapes for step in each.spec.epilogue}
    shapes = [each for number in range(60) if (each := draw_shape(number, "float32"))]
    for step in (Scale, Quantize):
        number = next(each.number for each in shapes if step in map(type, each.spec.epilogue))
        built = build_shape(number, "float32", 4, "sm_90", find_toolchain(), LIMITS)
        assert len(built.layers) == 4
        assert result_of(built).tally.wrong == ()


def test_what_ships_for_clusters_is_drawn_and_gives_the_same_bits_both_ways() -> None:
    with_linear: tuple[DataType, ...] = ("float32", "float16")
    for data_type, number in product(with_linear, LINEAR_SHAPES):
        shape = draw_shape(number, data_type)
        assert shape is not None
        assert shape.tiling.kernel == "linear"
        assert IS_OF_KIND[LINEAR_KINDS[number % LINEAR_EVERY]](shape.tiling)
    for data_type in get_args(DataType):
        shapes = [each for number in range(30) if (each := draw_shape(number, data_type))]
        by_place = {each.number for each in shapes if each.tiling.order == "place"}
        assert by_place
        assert by_place <= {each.number for each in shapes if each.number % BY_PLACE_EVERY == 2}
        alike = [draw_shape(each.number, data_type, clusters=False) for each in shapes]
        assert all(each is None or (each.tiling.cluster == 1 and not each.tiling.is_large) for each in alike)
    for number in LINEAR_SHAPES[1:]:
        built = build_shape(number, "float16", 3, "sm_90", find_toolchain(), LIMITS)
        assert len(built.layers) == 3
        assert result_of(built).tally.wrong == ()
