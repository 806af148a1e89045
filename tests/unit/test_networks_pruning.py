"""Pruning: exactly the requested number of smallest magnitudes become zero, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.ir.checkpoint import FloatArray
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, LayerSpec, Linear
from codegen.model_zoo import prune, random_weights
from codegen.model_zoo.pruning import kept_power


def with_ties(size: int, seed: int) -> FloatArray:
    """Values of both signs with many equal magnitudes."""
    weights = np.random.default_rng(seed).integers(1, 6, size) * (-1) ** np.arange(size)
    return weights.astype(np.float32).reshape(1, size)


@given(st.integers(1, 200), st.floats(0, 1), st.integers(0, 10))
def test_pruning_leaves_the_largest_magnitudes_and_an_exact_number_of_zeros(
    size: int, sparsity: float, seed: int
) -> None:
    weights = with_ties(size, seed)
    before = weights.copy()
    pruned = prune(weights, sparsity)
    zeros = pruned == 0
    assert np.count_nonzero(zeros) == round(sparsity * size)
    np.testing.assert_array_equal(pruned[~zeros], weights[~zeros])
    np.testing.assert_array_equal(weights, before)
    if zeros.any() and not zeros.all():
        assert np.abs(weights[zeros]).max() <= np.abs(weights[~zeros]).min()


@given(st.integers(0, 200), st.floats(0, 1), st.integers(0, 10))
def test_pruning_takes_the_first_of_a_stable_order_by_magnitude(size: int, sparsity: float, seed: int) -> None:
    weights = with_ties(size, seed)
    expected = weights.copy()
    expected[0, np.argsort(np.abs(weights[0]), kind="stable")[: round(sparsity * size)]] = 0
    np.testing.assert_array_equal(prune(weights, sparsity), expected)


def test_among_equal_magnitudes_the_first_are_pruned() -> None:
    weights = np.array([3, -1, 2, 1, -2] * 200, np.float32)
    expected = weights.copy()
    expected[np.abs(weights) == 1] = 0
    expected[np.flatnonzero(np.abs(weights) == 2)[:100]] = 0
    np.testing.assert_array_equal(prune(weights, 0.5), expected)


def test_zeros_that_are_there_count_among_the_smallest() -> None:
    weights = np.array([0, 5, -0.0, 1, 0, 2], np.float32)
    np.testing.assert_array_equal(prune(weights, 0.2), weights)
    np.testing.assert_array_equal(prune(weights, 4 / 6), [0, 5, 0, 0, 0, 2])


def test_the_order_in_memory_does_not_matter() -> None:
    weights = with_ties(60, 0).reshape(6, 10)
    np.testing.assert_array_equal(prune(np.asfortranarray(weights), 0.5), prune(weights, 0.5))


@pytest.mark.parametrize("sparsity", [-0.1, 1.1, float("nan")])
def test_a_sparsity_that_is_no_share_is_an_error(sparsity: float) -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        prune(np.ones(3, np.float32), sparsity)


@pytest.mark.parametrize("sparsity", [0, 0.5, 0.9, 0.99, 1])
def test_the_power_that_is_kept_is_that_of_pruned_normal_weights(sparsity: float) -> None:
    weights = np.random.default_rng(0).standard_normal(1_000_000, np.float32)
    measured = float(np.square(prune(weights, sparsity), dtype=np.float64).mean())
    assert kept_power(sparsity) == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize(
    "spec", [Conv2d(4, 8, 8, 6, 3, 3, groups=2), ConvTranspose2d(4, 8, 8, 6, 2, 2, (2, 2)), Linear(40, 30)]
)
def test_random_weights_fit_any_spec(spec: LayerSpec) -> None:
    weights = random_weights(spec, 0.5)
    assert weights.kernel.shape == spec.weights_shape
    assert weights.bias.shape == (spec.output_channels,)
    assert weights.sparsity == 0.5
