"""The reference equals the definition and onnxruntime; zero weights have no effect; regions are parts of the whole."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import from_float32, to_float32
from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, ConvTranspose2d, LayerSpec, LeakyRelu, Linear
from codegen.kernels.output_region import EVERYTHING, Region
from codegen.model_zoo import TEN_OPERATORS
from codegen.verification.dot_products import dot_products
from codegen.verification.reference import layer_output
from tests.error_bounds import error_bound
from tests.unit.layer_definitions import (
    by_definition,
    conv2d_specs,
    conv_transpose2d_specs,
    plain_specs,
    random_arrays,
    random_weights,
    regions,
    specs,
)
from tests.unit.onnx_models import conv, info, model, save, tensor, values

seeds = st.integers(0, 1000)


@settings(deadline=None, max_examples=150)
@given(specs(), seeds)
def test_a_layer_computes_what_its_definition_says(spec: LayerSpec, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights, (x, residual) = random_weights(spec, rng), random_arrays(spec, rng)
    output = layer_output(spec, weights, x, residual=residual)
    assert output.dtype == np.float64
    assert output.shape == (2, *spec.output_shape)
    np.testing.assert_allclose(output, by_definition(spec, weights, x, residual), rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=150)
@given(
    spec=conv2d_specs().map(lambda spec: replace(spec, dilation=(1, 1), groups=1)),
    auto_pad=st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]),
    has_bias=st.booleans(),
    seed=seeds,
)
def test_a_layer_as_read_computes_what_onnxruntime_computes_within_the_bound(
    spec: Conv2d, auto_pad: str, has_bias: bool, seed: int
) -> None:
    if auto_pad == "VALID" and (spec.height < spec.kernel_height or spec.width < spec.kernel_width):
        auto_pad = "NOTSET"
    pads = {"pads": list(spec.padding)} if auto_pad == "NOTSET" else {}
    weights, x = random_weights(spec, np.random.default_rng(seed)), values(2, *spec.input_shape, seed=seed)
    node = conv(inputs=["x", "w", "b"][: 2 + has_bias], strides=list(spec.stride), auto_pad=auto_pad, **pads)
    tensors = [tensor("w", weights.kernel), tensor("b", weights.bias)][: 1 + has_bias]
    proto = model([node], tensors, inputs=[info("x", ["N", *spec.input_shape])])
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    with tempfile.TemporaryDirectory() as folder:
        (layer,) = read_checkpoint(save(Path(folder), proto)).layers
    reference = layer_output(layer.spec, layer.weights, x)
    assert reference.shape == expected.shape == (2, *layer.spec.output_shape)
    assert (np.abs(expected - reference) <= error_bound(layer.spec, layer.weights, x)).all()


@settings(deadline=None, max_examples=100)
@given(st.one_of(conv2d_specs(), conv_transpose2d_specs()), seeds)
def test_a_layer_computes_what_onnxruntime_computes_with_the_same_attributes(
    spec: Conv2d | ConvTranspose2d, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weights, (x, _) = random_weights(spec, rng), random_arrays(spec, rng)
    kernel, operator, more = weights.kernel, "Conv", {}
    if isinstance(spec, ConvTranspose2d):  # ONNX has the channels first
        kernel, operator, more = _swap(kernel, spec.groups), "ConvTranspose", {"output_padding": spec.output_padding}
    node = helper.make_node(
        operator,
        ["x", "w", "b"],
        ["y"],
        strides=spec.stride,
        pads=spec.padding,
        dilations=spec.dilation,
        group=spec.groups,
        **more,
    )
    inputs = [info("x", ["N", *spec.input_shape])]
    proto = model([node], [tensor("w", kernel), tensor("b", weights.bias)], inputs=inputs)
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    reference = layer_output(spec, weights, x)
    assert reference.shape == expected.shape
    assert (np.abs(expected - reference) <= error_bound(spec, weights, x)).all()


@settings(deadline=None, max_examples=100)
@given(conv2d_specs(), seeds)
def test_a_transposed_convolution_is_the_adjoint_of_the_convolution(spec: Conv2d, seed: int) -> None:
    extents = [(spec.weights_shape[2 + i] - 1) * spec.dilation[i] + 1 for i in (0, 1)]
    height_rest = (spec.height + spec.padding[0] + spec.padding[2] - extents[0]) % spec.stride[0]
    width_rest = (spec.width + spec.padding[1] + spec.padding[3] - extents[1]) % spec.stride[1]
    transposed = ConvTranspose2d(
        *spec.output_shape,
        spec.channels,
        spec.kernel_height,
        spec.kernel_width,
        spec.stride,
        spec.padding,
        spec.dilation,
        spec.groups,
        (height_rest, width_rest),
    )
    rng = np.random.default_rng(seed)
    kernel, (x, _), (y, _) = random_weights(spec, rng).kernel, random_arrays(spec, rng), random_arrays(transposed, rng)
    there = layer_output(spec, Weights(kernel, np.zeros(spec.output_channels, np.float32)), x)
    swapped = Weights(_swap(kernel, spec.groups), np.zeros(spec.channels, np.float32))
    back = layer_output(transposed, swapped, y)
    assert back.shape == x.shape
    np.testing.assert_allclose(np.sum(there * y), np.sum(x * back), rtol=1e-9, atol=1e-9)


def _swap(kernel: np.ndarray, groups: int) -> np.ndarray:
    """Weights [K, C / groups, ...] as [C, K / groups, ...]."""
    split = kernel.reshape(groups, -1, *kernel.shape[1:])
    return np.moveaxis(split, 1, 2).reshape(-1, split.shape[1], *kernel.shape[2:])


ODD = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38, -1e38, 1e-45]


@settings(deadline=None, max_examples=100)
@given(specs(), seeds, st.floats(0, 1))
def test_infinities_and_nans_reach_an_output_through_non_zero_weights_only(
    spec: LayerSpec, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    weights, (x, residual) = random_weights(spec, rng, 0.7), random_arrays(spec, rng)
    odd = rng.random(x.shape) < share / 4
    x[odd] = rng.choice(ODD, int(odd.sum()))
    output = layer_output(spec, weights, x, residual=residual)
    np.testing.assert_allclose(output, by_definition(spec, weights, x, residual), rtol=1e-9, atol=1e-9)
    bound = error_bound(spec, weights, x, residual=residual)
    assert not np.isnan(bound).any()
    assert np.isinf(bound[~np.isfinite(output)]).all()


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_zero_weight_takes_nothing_from_an_infinite_input(zero: float) -> None:
    spec = Conv2d(1, 1, 2, 1, 1, 1)
    weights = Weights(np.full((1, 1, 1, 1), zero, np.float32), np.array([2], np.float32))
    x = np.array([[[[np.inf, np.nan]]]], np.float32)
    np.testing.assert_array_equal(layer_output(spec, weights, x), [[[[2, 2]]]])
    assert (error_bound(spec, weights, x) < 1e-6).all()


def test_nan_stays_nan_in_every_step_of_the_epilogue() -> None:
    spec = Linear(1, 1, epilogue=(Clip(0, 6), LeakyRelu(0.1), AddResidual(), Clip(-1, 1)))
    weights = Weights(np.ones((1, 1), np.float32), np.zeros(1, np.float32))
    x, residual = np.array([[np.nan], [1]], np.float32), np.zeros((2, 1), np.float32)
    np.testing.assert_array_equal(layer_output(spec, weights, x, residual=residual), [[np.nan], [1]])


@settings(deadline=None, max_examples=200)
@given(specs(), st.data())
def test_a_region_is_that_part_of_the_output_and_of_the_bound(spec: LayerSpec, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(seeds))
    weights, (x, residual) = random_weights(spec, rng), random_arrays(spec, rng)
    region = data.draw(regions(spec, len(x)))
    index = region.index(1 + len(spec.output_shape))
    part = layer_output(spec, weights, x, region, residual)
    np.testing.assert_allclose(
        part, layer_output(spec, weights, x, residual=residual)[index], rtol=1e-12, atol=1e-12, strict=True
    )
    whole = error_bound(spec, weights, x, residual=residual)
    np.testing.assert_allclose(
        error_bound(spec, weights, x, region, residual), whole[index], rtol=1e-9, atol=1e-15, strict=True
    )


def test_a_region_does_not_see_the_input_elsewhere() -> None:
    rng = np.random.default_rng(0)
    convolution = Conv2d(4, 8, 8, 4, 3, 3, padding=(1, 1, 1, 1), groups=2)
    transposed = ConvTranspose2d(4, 8, 8, 4, 3, 3, (2, 2), (1, 1, 1, 1), groups=2)
    for spec, rows in ((convolution, slice(0, 2)), (transposed, slice(0, 4))):
        weights, (x, _) = random_weights(spec, rng, sparsity=0), random_arrays(spec, rng)
        part = Region(slice(0, 1), slice(2, 4), rows, slice(6, 8))
        before = layer_output(spec, weights, x, part)
        x[1], x[:, :2], x[:, :, 3:] = np.nan, np.nan, np.nan
        np.testing.assert_array_equal(layer_output(spec, weights, x, part), before)


def test_the_groups_of_a_depthwise_layer_are_computed_together() -> None:
    spec = Conv2d(960, 7, 7, 1920, 3, 3, padding=(1, 1, 1, 1), groups=960)
    weights, x = random_weights(spec, np.random.default_rng(0)), values(1, *spec.input_shape)
    assert len(dot_products(spec, weights, x, EVERYTHING).grouped) == 1
    ragged = dot_products(spec, weights, x, Region(slice(None), slice(1, 1919)))
    assert [part.groups for part in ragged.grouped] == [1, 958, 1]


def test_a_kernel_larger_than_the_padded_input_has_no_output() -> None:
    spec = Conv2d(1, 3, 8, 2, 7, 3)
    weights, x = random_weights(spec, np.random.default_rng(0)), values(2, *spec.input_shape)
    assert layer_output(spec, weights, x).shape == error_bound(spec, weights, x).shape == (2, 2, 0, 6)


@settings(deadline=None, max_examples=50)
@given(plain_specs, seeds)
def test_bfloat16_is_read_from_its_bits_and_other_types_from_their_floats(spec: LayerSpec, seed: int) -> None:
    rng = np.random.default_rng(seed)
    spec = replace(spec, data_type="bfloat16", epilogue=(AddResidual(),))
    weights, (bits, residual) = random_weights(spec, rng), random_arrays(spec, rng)
    assert residual is not None
    assert bits.dtype == residual.dtype == np.uint16
    x, added = to_float32(bits, "bfloat16"), to_float32(residual, "bfloat16")
    from_bits = layer_output(spec, weights, bits, residual=residual)
    np.testing.assert_array_equal(from_bits, layer_output(spec, weights, x, residual=added))
    half = replace(spec, data_type="float16")
    x16, added16 = from_float32(x, "float16"), from_float32(added, "float16")
    expected = by_definition(half, weights, to_float32(x16, "float16"), to_float32(added16, "float16"))
    np.testing.assert_allclose(layer_output(half, weights, x16, residual=added16), expected, rtol=1e-9, atol=1e-9)


def test_what_does_not_fit_the_layer_is_an_error() -> None:
    spec = Conv2d(2, 8, 8, 3, 3, 3)
    weights, x, every = random_weights(spec, np.random.default_rng(0)), values(1, 2, 8, 8), slice(None)
    with pytest.raises(ValueError, match="step"):
        layer_output(spec, weights, x, Region(every, every, slice(0, 4, 2), every))
    with pytest.raises(ValueError, match="shape"):
        layer_output(spec, weights, x[0])
    with pytest.raises(ValueError, match="shape"):
        layer_output(spec, weights, x[:, :1])
    with pytest.raises(ValueError, match="uint16"):
        layer_output(spec, weights, x.astype(np.uint16))
    with pytest.raises(ValueError, match="without one"):
        layer_output(spec, weights, x, residual=values(1, 3, 6, 6))
    adding = replace(spec, epilogue=(AddResidual(),))
    with pytest.raises(ValueError, match="no residual"):
        layer_output(adding, weights, x)
    with pytest.raises(ValueError, match="shape"):
        layer_output(adding, weights, x, residual=values(1, 3, 6, 1))


def test_a_layer_of_224x224x64x64_is_feasible() -> None:
    spec = TEN_OPERATORS["vgg-conv2"]
    weights, x = random_weights(spec, np.random.default_rng(0), 0.9), values(1, *spec.input_shape)
    part = Region(slice(0, 1), slice(8, 16), slice(100, 108), slice(216, 224))
    whole = layer_output(spec, weights, x)
    np.testing.assert_allclose(layer_output(spec, weights, x, part), whole[part.index(4)], rtol=1e-12, atol=1e-12)
