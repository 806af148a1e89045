"""The qualification corpus draws values at the edges of each feature."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.ir.layer_spec import DataType
from farm.qualification.corpus import BOUNDED_EVERY, draw_shape


def test_bounds_are_drawn_of_few_and_of_all_channels_and_no_lowest_is_above_its_highest() -> None:
    numbers = range(BOUNDED_EVERY - 1, 100, BOUNDED_EVERY)
    drawn = [shape.weights(0).bounds for number in numbers if (shape := draw_shape(number, "float32"))]
    bounds = [each for each in drawn if each is not None]
    assert len(bounds) == len(drawn)
    shares = np.array([np.isfinite(each).mean(axis=0) for each in bounds])
    assert (shares.min(axis=0) == 0).all()
    assert (shares.max(axis=0) == 1).all()
    assert all((each[:, 0] <= each[:, 1]).all() for each in bounds)


def test_the_corpus_of_an_architecture_without_clusters_has_none() -> None:
    shapes = [draw_shape(number, "float32", clusters=clusters) for clusters in (True, False) for number in range(12)]
    clusters = [shape is not None and shape.tiling.cluster > 1 for shape in shapes]
    assert any(clusters[:12])
    assert not any(clusters[12:])


@pytest.mark.parametrize("data_type", ["float32", "float16", "bfloat16"])
def test_the_first_shapes_have_blocks_of_two_and_of_four_k_groups_in_both_orders(data_type: DataType) -> None:
    shapes = [shape.tiling for number in range(100) if (shape := draw_shape(number, data_type))]
    several = {(each.groups, each.order) for each in shapes if each.groups > 1}
    assert {groups for groups, _ in several} == {2, 4}
    assert {order for _, order in several} == {"group", "place"}
    without_clusters = [draw_shape(number, data_type, clusters=False) for number in range(20)]
    assert any(shape is not None and shape.tiling.groups > 1 for shape in without_clusters)


@pytest.mark.parametrize("data_type", ["float32", "float16", "bfloat16"])
def test_some_shapes_begin_early_where_the_architecture_has_that(data_type: DataType) -> None:
    drawn = [shape.tiling for number in range(60) if (shape := draw_shape(number, data_type))]
    assert {each.waits for each in drawn if each.cluster == 1} == {True, False}
    assert data_type == "bfloat16" or {each.waits for each in drawn if each.cluster > 1} == {True, False}
    older = [shape.tiling for number in range(60) if (shape := draw_shape(number, data_type, clusters=False))]
    assert not any(each.waits for each in older)
