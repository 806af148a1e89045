"""ONNX reader: 1-D and 2-D convolutions and transposed convolutions, with every attribute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from codegen.errors import CheckpointError
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d
from codegen.verification.reference import layer_output
from farm.runtime.plan import layer_shape
from tests.unit.onnx_models import (
    Shape,
    assert_layer_computes_its_output,
    info,
    layer_of,
    model,
    node,
    save,
    tensor,
    tensors_of,
    values,
)


def one(
    operator: str, weights: tuple[int, ...], input_shape: Shape, bias: int | None = None, **attributes: Any
) -> onnx.ModelProto:
    """A model of one node with random weights of this shape."""
    tensors = [tensor("w", values(*weights))] + ([] if bias is None else [tensor("b", values(bias, seed=1))])
    inputs = "x w" if bias is None else "x w b"
    return model([node(operator, inputs, "y", "n", **attributes)], tensors, inputs=[info("x", input_shape)])


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((4, 3, 3, 3), (2, 3, 9, 8), {}),
    ((4, 3, 3, 2), (2, 3, 9, 8), {"strides": [2, 3], "dilations": [3, 2], "pads": [1, 0, 2, 3]}),
    ((6, 2, 3, 3), (1, 4, 7, 7), {"group": 2, "pads": [1, 1, 1, 1]}),
    ((4, 1, 3, 3), (1, 4, 7, 7), {"group": 4}),
    ((4, 3, 3, 4), (1, 3, 9, 8), {"auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    ((4, 3, 3, 4), (1, 3, 9, 8), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ((4, 3, 3, 4), (1, 3, 9, 8), {"auto_pad": "VALID", "dilations": [2, 2]}),
    ((4, 3, 5), (2, 3, 20), {}),
    ((6, 1, 3), (2, 3, 20), {"strides": [2], "dilations": [3], "pads": [4, 1], "group": 3, "kernel_shape": [3]}),
    ((4, 3, 5), (1, 3, 20), {"auto_pad": "SAME_UPPER", "strides": [2]}),
]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("weights", "input_shape", "attributes"), CONVOLUTIONS)
def test_a_convolution_computes_what_the_node_does(
    weights: tuple[int, ...], input_shape: tuple[int, ...], attributes: dict[str, Any], bias: bool, tmp_path: Path
) -> None:
    proto = one("Conv", weights, input_shape, weights[0] if bias else None, **attributes)
    layer = layer_of(tmp_path, proto)
    assert isinstance(layer.spec, Conv2d)
    assert_layer_computes_its_output(layer, proto, x=values(*input_shape, seed=2))


def test_a_convolution_of_one_dimension_has_height_1(tmp_path: Path) -> None:
    proto = one("Conv", (4, 3, 5), ("N", 3, 20), strides=[2], pads=[2, 1], dilations=[3])
    layer = layer_of(tmp_path, proto)
    assert layer.spec == Conv2d(3, 1, 20, 4, 1, 5, stride=(1, 2), padding=(0, 2, 0, 1), dilation=(1, 3))
    np.testing.assert_array_equal(layer.weights.kernel[:, :, 0], values(4, 3, 5))


@pytest.mark.parametrize(("auto_pad", "padding"), [("SAME_UPPER", (1, 3, 2, 3)), ("SAME_LOWER", (2, 3, 1, 3))])
def test_same_padding_is_of_the_dilated_kernel(auto_pad: str, padding: tuple[int, ...], tmp_path: Path) -> None:
    """Expected values are from ONNX's formula, since onnxruntime rejects this case."""
    proto = one("Conv", (4, 3, 2, 3), (1, 3, 8, 8), auto_pad=auto_pad, dilations=[3, 3])
    layer = layer_of(tmp_path, proto)
    assert isinstance(layer.spec, Conv2d)
    assert layer.spec.padding == padding
    assert layer.spec.output_shape == (4, 8, 8)


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((3, 4, 3, 3), (2, 3, 5, 6), {}),
    ((3, 4, 2, 2), (1, 3, 5, 6), {"strides": [2, 2]}),
    ((3, 4, 3, 2), (1, 3, 5, 6), {"strides": [2, 3], "pads": [1, 0, 0, 1], "dilations": [2, 3]}),
    ((3, 4, 3, 3), (1, 3, 5, 6), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ((3, 4, 3, 3), (1, 3, 5, 6), {"strides": [2, 2], "output_padding": [1, 0]}),
    ((4, 3, 3, 3), (1, 4, 5, 6), {"group": 2, "strides": [2, 1]}),
    ((4, 1, 3, 3), (1, 4, 5, 6), {"group": 4}),
    ((3, 4, 4, 3), (1, 3, 5, 6), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((3, 4, 4, 3), (1, 3, 5, 6), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((3, 4, 3, 3), (1, 3, 5, 6), {"strides": [2, 2], "output_shape": [10, 12]}),
    ((3, 4, 3, 3), (1, 3, 5, 6), {"strides": [2, 2], "output_shape": [10, 11], "auto_pad": "SAME_UPPER"}),
    ((3, 4, 3, 3), (1, 3, 5, 6), {"output_shape": [5, 6], "pads": [0, 0, 2, 2]}),
    ((3, 4, 3, 3), (1, 3, 5, 6), {"auto_pad": "VALID"}),
    ((3, 4, 5), (2, 3, 7), {"strides": [3], "pads": [1, 2], "output_padding": [1]}),
    ((4, 2, 5), (2, 4, 7), {"group": 2, "output_shape": [9]}),
]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("weights", "input_shape", "attributes"), TRANSPOSED)
def test_a_transposed_convolution_computes_what_the_node_does(
    weights: tuple[int, ...], input_shape: tuple[int, ...], attributes: dict[str, Any], bias: bool, tmp_path: Path
) -> None:
    kernels = weights[1] * attributes.get("group", 1)
    proto = one("ConvTranspose", weights, input_shape, kernels if bias else None, **attributes)
    layer = layer_of(tmp_path, proto)
    assert isinstance(layer.spec, ConvTranspose2d)
    assert_layer_computes_its_output(layer, proto, x=values(*input_shape, seed=2))


def test_weights_of_a_transposed_convolution_become_kernels_first_group_by_group(tmp_path: Path) -> None:
    proto = one("ConvTranspose", (4, 3, 2, 2), (1, 4, 5, 5), group=2)
    layer = layer_of(tmp_path, proto)
    assert layer.spec == ConvTranspose2d(4, 5, 5, 6, 2, 2, groups=2)
    weights = values(4, 3, 2, 2)
    assert layer.weights.kernel.shape == (6, 2, 2, 2)
    for kernel in range(6):
        group, own = divmod(kernel, 3)
        np.testing.assert_array_equal(layer.weights.kernel[kernel], weights[2 * group : 2 * group + 2, own])


@pytest.mark.parametrize(
    ("operator", "attributes", "reason"),
    [
        ("ConvTranspose", {"pads": [0, -1, 0, 0]}, "negative padding"),
        ("ConvTranspose", {"output_shape": [20, 20]}, "more than its input gives"),
        ("ConvTranspose", {"strides": [4, 4], "auto_pad": "SAME_UPPER"}, "more than its input gives"),
        ("Conv", {"pads": [0, -1, 0, 0]}, "negative padding"),
    ],
)
def test_a_convolution_whose_padding_is_not_compiled_is_the_reason(
    operator: str, attributes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=rf"nothing to compile.*{reason}"):
        read_checkpoint(save(tmp_path, one(operator, (3, 3, 3, 3), (1, 3, 8, 8), **attributes)))


@pytest.mark.parametrize(
    ("operator", "weights", "attributes", "fact"),
    [
        ("Conv", (4, 2, 3, 3), {"group": 3}, "do not fit 3 groups"),
        ("Conv", (4, 2, 3, 3), {"group": 2}, "do not fit an input"),
        ("Conv", (4, 3, 3, 3), {"group": 0}, "group is 0"),
        ("Conv", (4, 3, 3, 3), {"group": [1, 1]}, "not 1 number"),
        ("Conv", (4, 3, 3, 3), {"dilations": [0, 1]}, r"dilations are \[0, 1\]"),
        ("Conv", (4, 3, 3, 3), {"dilations": [4, 4]}, "do not fit an input"),
        ("ConvTranspose", (4, 4, 3, 3), {}, "do not fit an input"),
        ("ConvTranspose", (3, 4, 3, 3), {"group": 2}, "do not fit 2 groups"),
        ("ConvTranspose", (3, 4), {}, r"not \[C, K, R, S\]"),
        ("ConvTranspose", (3, 4, 3, 3), {"output_padding": [-1, 0]}, "output_padding are"),
        ("ConvTranspose", (3, 4, 3, 3), {"output_shape": [1, 2, 3]}, "output_shape are"),
        ("ConvTranspose", (3, 4, 3, 3), {"pads": [9, 9, 9, 9]}, "do not fit an input"),
    ],
)
def test_attributes_that_cannot_be_run_are_an_error(
    operator: str, weights: tuple[int, ...], attributes: dict[str, Any], fact: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=rf"layer 'n': .*{fact}"):
        read_checkpoint(save(tmp_path, one(operator, weights, (1, 3, 8, 8), **attributes)))


@pytest.mark.parametrize(
    ("operator", "weights", "attributes"),
    [
        ("Conv", (4, 3, 1, 3, 2), {"strides": [2, 2, 1], "pads": [0, 1, 0, 0, 1, 1], "dilations": [1, 1, 2]}),
        ("Conv", (6, 1, 1, 3, 3), {"group": 3, "auto_pad": "SAME_UPPER"}),
        ("Conv", (4, 3, 1, 3, 3), {"kernel_shape": [1, 3, 3]}),
        ("ConvTranspose", (3, 4, 1, 2, 2), {"strides": [1, 2, 2], "output_padding": [0, 1, 0]}),
    ],
)
def test_a_convolution_of_depth_one_is_computed_as_one_of_two_dimensions(
    operator: str, weights: tuple[int, ...], attributes: dict[str, Any], tmp_path: Path
) -> None:
    proto = one(operator, weights, (2, 3, 1, 9, 8), **attributes)
    layer = layer_of(tmp_path, proto)
    x = values(2, 3, 1, 9, 8, seed=3)
    [expected] = tensors_of(proto, ["y"], x=x)
    found = layer_output(layer.spec, layer.weights, x.reshape(2, *layer.spec.input_shape))
    assert layer_shape(layer.spec, x.shape) == expected.shape
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "attributes"),
    [((1, 3, 2, 9, 8), {}), ((1, 3, 1, 9, 8), {"pads": [1, 0, 0, 0, 0, 0]}), ((1, 3, None, 9, 8), {})],
)
def test_a_convolution_of_more_than_one_depth_is_the_reason(x: Any, attributes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="3-D convolution"):
        read_checkpoint(save(tmp_path, one("Conv", (4, 3, 1, 3, 3), x, **attributes)))


def test_a_transposed_convolution_of_three_dimensions_is_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="3-D convolution"):
        read_checkpoint(save(tmp_path, one("ConvTranspose", (3, 4, 2, 2, 2), (1, 3, 4, 4, 4))))
