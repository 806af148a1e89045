"""Small layers with as many inputs as outputs, for kernels of several layers, and what they compute."""

from __future__ import annotations

import numpy as np

from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.layer_spec import Clip, Conv2d

NEURONS, WIDTH, CLIP = 32, 64, 4.0
SPEC = Conv2d(NEURONS, 1, WIDTH, NEURONS, 1, 1, epilogue=(Clip(0.0, CLIP),))


def square_layers(density: float) -> list[Weights]:
    """Three layers of one shape."""
    rng = np.random.default_rng(4)
    kernels = rng.standard_normal((3, NEURONS, NEURONS)) * (rng.random((3, NEURONS, NEURONS)) < density)
    shape = (NEURONS, NEURONS, 1, 1)
    return [
        Weights(each.astype(np.float32).reshape(shape), rng.standard_normal(NEURONS).astype(np.float32))
        for each in kernels
    ]


def columns_of(tiles: FloatArray) -> FloatArray:
    """Tiles of WIDTH columns as [columns, NEURONS]."""
    return tiles.transpose(0, 2, 1).reshape(-1, NEURONS)


def expected(columns: FloatArray, layers: list[Weights]) -> FloatArray:
    """The layers' output for [columns, NEURONS], in float64."""
    values = columns.astype(np.float64)
    for each in layers:
        values = np.clip(values @ each.kernel.reshape(NEURONS, NEURONS).T + each.bias, 0, CLIP)
    return values
