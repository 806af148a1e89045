"""The reference: equal to onnxruntime, zero weights without effect, a bound that float32 keeps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from codegen.checkpoint import read_checkpoint
from codegen.layers import Weights
from codegen.networks import TEN_OPERATORS, prune
from codegen.reference import convolve, convolve_region, error_bound, error_bound_region
from codegen.spec import Conv2d
from tests.unit.onnx_models import conv, info, model, save, tensor, values


@st.composite
def specs(draw: st.DrawFn) -> Conv2d:
    kernel_height, kernel_width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    padding = draw(st.tuples(*[st.integers(0, 3)] * 4))
    height = draw(st.integers(max(1, kernel_height - padding[0] - padding[2]), 9))
    width = draw(st.integers(max(1, kernel_width - padding[1] - padding[3]), 9))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    channels, kernels = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return Conv2d(channels, height, width, kernels, kernel_height, kernel_width, stride, padding)


def random_weights(spec: Conv2d, seed: int = 0, sparsity: float = 0.5) -> Weights:
    return Weights(prune(values(*spec.weights_shape, seed=seed), sparsity), values(spec.kernels, seed=seed + 1))


def by_definition(spec: Conv2d, weights: Weights, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """The sum over non-zero weights, one output at a time."""
    output = np.zeros((len(x), *spec.output_shape))
    for n, k, p, q in np.ndindex(output.shape):
        total = float(weights.bias[k])
        for c, r, s in np.argwhere(weights.kernel[k]):
            y, column = p * spec.stride[0] + r - spec.padding[0], q * spec.stride[1] + s - spec.padding[1]
            if 0 <= y < spec.height and 0 <= column < spec.width:
                total += float(weights.kernel[k, c, r, s]) * float(x[n, c, y, column])
        output[n, k, p, q] = total
    return output


@settings(deadline=None, max_examples=150)
@given(
    spec=specs(),
    auto_pad=st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]),
    has_bias=st.booleans(),
    batch=st.integers(1, 2),
    seed=st.integers(0, 1000),
)
def test_a_layer_as_read_computes_what_onnxruntime_computes_within_the_bound(
    spec: Conv2d, auto_pad: str, has_bias: bool, batch: int, seed: int
) -> None:
    if auto_pad == "VALID" and (spec.height < spec.kernel_height or spec.width < spec.kernel_width):
        auto_pad = "NOTSET"
    pads = {"pads": list(spec.padding)} if auto_pad == "NOTSET" else {}
    weights, x = random_weights(spec, seed), values(batch, *spec.input_shape, seed=seed)
    node = conv(inputs=["x", "w", "b"][: 2 + has_bias], strides=list(spec.stride), auto_pad=auto_pad, **pads)
    tensors = [tensor("w", weights.kernel), tensor("b", weights.bias)][: 1 + has_bias]
    proto = model([node], tensors, inputs=[info("x", ["N", *spec.input_shape])])
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    with tempfile.TemporaryDirectory() as folder:
        (layer,) = read_checkpoint(save(Path(folder), proto)).layers
    reference = convolve(layer.spec, layer.weights, x)
    assert reference.shape == expected.shape == (batch, *layer.spec.output_shape)
    assert (np.abs(expected - reference) <= error_bound(layer.spec, layer.weights, x)).all()


ODD = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38, -1e38, 1e-45]


@settings(deadline=None, max_examples=60)
@given(specs(), st.integers(0, 1000), st.floats(0, 1))
def test_infinities_and_nans_reach_an_output_through_non_zero_weights_only(
    spec: Conv2d, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    x = values(1, *spec.input_shape, seed=seed)
    odd = rng.random(x.shape) < share / 4
    x[odd] = rng.choice(ODD, int(odd.sum()))
    weights = random_weights(spec, seed, 0.7)
    with np.errstate(invalid="ignore"):
        expected = by_definition(spec, weights, x)
    np.testing.assert_allclose(convolve(spec, weights, x), expected, rtol=1e-9, atol=1e-9)


def test_a_zero_weight_takes_nothing_from_an_infinite_input() -> None:
    spec = Conv2d(1, 1, 2, 1, 1, 1)
    weights = Weights(np.zeros((1, 1, 1, 1), np.float32), np.array([2], np.float32))
    np.testing.assert_array_equal(convolve(spec, weights, np.array([[[[np.inf, np.nan]]]])), [[[[2, 2]]]])


@settings(deadline=None, max_examples=100)
@given(specs(), st.data())
def test_a_region_is_that_part_of_the_output_and_of_the_bound(spec: Conv2d, data: st.DataObject) -> None:
    parts = [data.draw(st.slices(n).filter(lambda part: part.step in (None, 1))) for n in spec.output_shape]
    kernels, rows, columns = parts
    weights, x = random_weights(spec), values(2, *spec.input_shape)
    index = (slice(None), kernels, rows, columns)
    region = convolve_region(spec, weights, x, rows, columns, kernels)
    np.testing.assert_allclose(region, convolve(spec, weights, x)[index], rtol=1e-12, atol=1e-12)
    bound = error_bound_region(spec, weights, x, rows, columns, kernels)
    np.testing.assert_allclose(bound, error_bound(spec, weights, x)[index], rtol=1e-12)


def test_a_region_does_not_see_the_input_elsewhere() -> None:
    spec = Conv2d(2, 8, 8, 3, 3, 3, padding=(1, 1, 1, 1))
    weights, x = random_weights(spec, sparsity=0), values(1, *spec.input_shape)
    part = (slice(0, 2), slice(5, 8), slice(1, 3))
    before = convolve_region(spec, weights, x, *part)
    x[:, :, 3:, :] = np.nan
    x[:, :, :, :4] = np.nan
    np.testing.assert_array_equal(convolve_region(spec, weights, x, *part), before)


def test_a_slice_with_a_step_and_an_input_of_another_shape_are_errors() -> None:
    spec = Conv2d(2, 8, 8, 3, 3, 3)
    weights, x, every = random_weights(spec), values(1, 2, 8, 8), slice(None)
    with pytest.raises(ValueError, match="step"):
        convolve_region(spec, weights, x, slice(0, 4, 2), every, every)
    with pytest.raises(ValueError, match="shape"):
        convolve(spec, weights, x[0])
    with pytest.raises(ValueError, match="shape"):
        convolve(spec, weights, x[:, :1])


def test_the_type_of_the_output_is_the_type_asked_for() -> None:
    spec = Conv2d(2, 8, 8, 3, 3, 3)
    weights, x = random_weights(spec), values(1, 2, 8, 8)
    assert convolve(spec, weights, x).dtype == np.float64
    assert convolve(spec, weights, x, np.float32).dtype == np.float32


def sum_in_float32(terms: NDArray[np.float32], order: NDArray[np.int64]) -> np.float32:
    total = np.float32(0)
    for term in terms[order]:
        total += term
    return total


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e-38, 1e-44])
def test_a_float32_sum_in_any_order_keeps_the_bound(scale: float) -> None:
    spec = Conv2d(24, 3, 3, 1, 3, 3)
    weights = random_weights(spec)
    weights = Weights(weights.kernel, weights.bias * np.float32(scale))
    x = values(1, *spec.input_shape) * np.float32(scale)
    exact, bound = convolve(spec, weights, x).item(), error_bound(spec, weights, x).item()
    terms = np.append((weights.kernel * x).ravel(), weights.bias)
    rng = np.random.default_rng(0)
    for order in [np.argsort(terms), np.argsort(-np.abs(terms)), *(rng.permutation(len(terms)) for _ in range(20))]:
        assert abs(float(sum_in_float32(terms, order)) - exact) <= bound


def test_the_bound_is_tight_enough_to_catch_one_wrong_weight() -> None:
    spec = TEN_OPERATORS["alexnet-conv2"]
    weights, x = random_weights(spec, sparsity=0.9), values(1, *spec.input_shape)
    wrong = weights.kernel.copy()
    k, c = np.argwhere(wrong[:, :, 2, 2])[0]  # the middle of the kernel never meets the padding
    wrong[k, c, 2, 2] *= np.float32(1.01)
    error = np.abs(convolve(spec, Weights(wrong, weights.bias), x) - convolve(spec, weights, x))
    assert (error > error_bound(spec, weights, x))[0, k].mean() > 0.9


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_the_bound_says_nothing_where_the_sum_may_overflow(value: float) -> None:
    spec = Conv2d(2, 1, 1, 1, 1, 1)
    weights: Any = Weights(np.ones((1, 2, 1, 1), np.float32), np.zeros(1, np.float32))
    x = np.full((1, 2, 1, 1), value, np.float32)
    assert np.isinf(error_bound(spec, weights, x)).all()


def test_a_layer_of_224x224x64x64_is_feasible() -> None:
    spec = TEN_OPERATORS["vgg-conv2"]
    weights, x = random_weights(spec, sparsity=0.9), values(1, *spec.input_shape)
    part = (slice(100, 108), slice(216, 224), slice(8, 16))
    whole = convolve(spec, weights, x)
    region = convolve_region(spec, weights, x, *part)
    np.testing.assert_allclose(region, whole[:, part[2], part[0], part[1]], rtol=1e-12, atol=1e-12)
