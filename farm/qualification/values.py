"""The numbers of drawn layers: weights, biases, bounds of inputs, odd ones among them."""

from __future__ import annotations

import numpy as np

from codegen.ir.checkpoint import FloatArray
from codegen.ir.dtypes import PRECISIONS, from_float32, to_float32
from codegen.ir.layer_spec import LayerSpec, is_bounded


def drawn_values(spec: LayerSpec, rng: np.random.Generator) -> FloatArray:
    """Normal ones; some layers have few values, one value, or values of every magnitude that the data type has."""
    normal = rng.standard_normal(spec.weights_shape, dtype=np.float32)
    kind = rng.random()
    if kind < 0.2:
        normal = rng.choice(np.array([-1, 1, 0.5, -2, 0.25, 3], np.float32), spec.weights_shape)
    elif kind < 0.25:
        normal = np.full(spec.weights_shape, normal.flat[0])
    elif kind < 0.4:
        precision = PRECISIONS[spec.data_type]
        least, most = np.log2(precision.smallest_subnormal), np.log2(precision.largest) - 2
        normal = np.sign(normal) * np.exp2(rng.uniform(least, most, spec.weights_shape)).astype(np.float32)
    values = to_float32(from_float32(normal.astype(np.float32), spec.data_type), spec.data_type)
    return np.where(values == 0, np.float32(1), values)


def drawn_bounds(spec: LayerSpec, rng: np.random.Generator) -> FloatArray | None:
    """Normal ones and odd ones, in some layers of few channels or of all, on both sides; None of other layers."""
    if not is_bounded(spec):
        return None
    shape = (spec.channels, 2)
    odd = rng.choice(np.array([0.0, -0.0, 1e-40, -1e-44, 3e38, -3e38], np.float32), shape)
    values = np.sort(np.where(rng.random(shape) < 0.2, odd, rng.standard_normal(shape, dtype=np.float32)), axis=1)
    exists = rng.random(shape) < rng.choice([0.0, 0.3, 0.6, 1.0], 2)
    return np.where(exists, values, np.array([-np.inf, np.inf])).astype(np.float32)


def drawn_biases(spec: LayerSpec, rng: np.random.Generator) -> FloatArray:
    """Normal ones, in some layers with zeros of both signs, or nothing else."""
    normal, zeros = rng.standard_normal(spec.output_channels, dtype=np.float32), rng.choice([0.0, 0.5, 1.0])
    zero = np.array([0.0, -0.0], np.float32)[rng.integers(0, 2, spec.output_channels)]
    values = np.where(rng.random(spec.output_channels) < zeros, zero, normal)
    return to_float32(from_float32(values, spec.data_type), spec.data_type)
