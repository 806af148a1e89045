"""The qualification corpus draws values at the edges of each feature."""

from __future__ import annotations

import numpy as np

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
