"""Pruning by magnitude, and random pruned weights."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from codegen.ir.checkpoint import FloatArray, Weights
from codegen.ir.layer_spec import LayerSpec, is_bounded


def prune(weights: FloatArray, sparsity: float) -> FloatArray:
    """A copy with the round(sparsity * size) smallest magnitudes set to zero; zeros of the input stay zero.

    Among equal magnitudes the first are pruned. Raises ValueError if the sparsity is not within 0 to 1.
    """
    if not 0 <= sparsity <= 1:
        raise ValueError(f"invalid sparsity {sparsity}: expected a share of zeros, 0 to 1")
    pruned = weights.copy(order="C")
    zeros = round(sparsity * weights.size)
    if zeros:
        flat = pruned.reshape(-1)
        magnitudes = np.abs(flat)
        largest = np.partition(magnitudes, zeros - 1)[zeros - 1]  # pruned; linear, unlike sorting
        smaller = magnitudes < largest
        equal = np.flatnonzero(magnitudes == largest)
        flat[smaller] = 0
        flat[equal[: zeros - np.count_nonzero(smaller)]] = 0
    return pruned


def kept_power(sparsity: float) -> float:
    """The mean square of standard normal values after pruning; 0 if all are pruned."""
    normal = NormalDist()
    if (share := (1 + sparsity) / 2) == 1:
        return 0.0
    smallest = normal.inv_cdf(share)
    return 2 * (smallest * normal.pdf(smallest) + 1 - normal.cdf(smallest))


def random_weights(spec: LayerSpec, sparsity: float, seed: int = 0) -> Weights:
    """Random normal weights of one layer, pruned by magnitude, with normal biases."""
    rng = np.random.default_rng(seed)
    kernel = rng.standard_normal(spec.weights_shape, dtype=np.float32)
    bias = rng.standard_normal(spec.output_channels, dtype=np.float32)
    return Weights(prune(kernel, sparsity), bias, random_bounds(spec, seed))


def random_bounds(spec: LayerSpec, seed: int = 0) -> FloatArray | None:
    """Random input bounds [C, 2] of a bounded layer: channels with a lower, an upper or no bound. None for others."""
    if not is_bounded(spec):
        return None
    rng = np.random.default_rng(seed + 2)
    bound, kind = rng.standard_normal(spec.channels, dtype=np.float32), rng.integers(0, 5, spec.channels)
    low, high = np.where(kind < 3, bound, -np.inf), np.where(kind == 3, bound, np.inf)
    return np.stack([low, high], axis=1).astype(np.float32)
