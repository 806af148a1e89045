"""Extraction of Conv and ConvTranspose nodes from their attributes and weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from codegen.errors import CheckpointError
from codegen.frontend.onnx.diagnostics import UnknownSizeError, UnsupportedError
from codegen.frontend.onnx.extract.product import Product, read_operands
from codegen.frontend.onnx.graph.dimensions import Size, in_words
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import Node
from codegen.ir.checkpoint import FloatArray
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a convolution; the default is the height of a 1-D convolution."""

    size: int = 1
    """Input elements."""
    kernel: int = 1
    """Filter elements."""
    stride: int = 1
    dilation: int = 1
    begin: int = 0
    """Padding before the input."""
    end: int = 0
    """Padding after the input."""
    output_padding: int = 0

    @property
    def extent(self) -> int:
        """Extent of the dilated filter in input elements; in output elements for a transposed convolution."""
        return (self.kernel - 1) * self.dilation + 1


@dataclass(frozen=True)
class ConvAttributes:
    """Attributes of Conv or ConvTranspose for one or two spatial axes, with ONNX's defaults."""

    kernel_shape: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    """Padding before the input for each axis, then after it."""
    dilations: tuple[int, ...]
    output_padding: tuple[int, ...]
    output_shape: tuple[int, ...]
    """Empty if absent."""
    group: int
    auto_pad: str


def conv_attributes(node: Node, kernel: tuple[int, ...]) -> ConvAttributes:
    """The attributes of a node whose filter has this spatial shape.

    Raises UnsupportedError for negative pads, and CheckpointError if an attribute has the wrong number of values or an
    invalid one.
    """
    ones, rank = (1,) * len(kernel), len(kernel)

    def integers(name: str, default: tuple[int, ...], least: int) -> tuple[int, ...]:
        values = node.integers.get(name, default)
        if len(values) != len(default):
            raise CheckpointError(f"its {name} are {list(values)}, not {len(default)} numbers: export the model again")
        if min(values) < least:
            raise CheckpointError(f"its {name} are {list(values)}, less than {least}: export the model again")
        return values

    pads = node.integers.get("pads", (0,) * (2 * rank))
    if len(pads) == 2 * rank and min(pads) < 0:
        raise UnsupportedError(
            "negative padding", f"its pads are {list(pads)}; negative padding (cropping) is not compiled"
        )
    output_shape = node.integers.get("output_shape", ())
    auto_pad = node.strings.get("auto_pad", "NOTSET")
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise CheckpointError(f"its auto_pad is '{auto_pad}', which ONNX does not define: export the model again")
    attributes = ConvAttributes(
        kernel_shape=integers("kernel_shape", kernel, 1),
        strides=integers("strides", ones, 1),
        pads=integers("pads", (0,) * (2 * rank), 0),
        dilations=integers("dilations", ones, 1),
        output_padding=integers("output_padding", (0,) * rank, 0),
        output_shape=integers("output_shape", (1,) * rank, 1) if output_shape else (),
        group=node.integer("group", 1),
        auto_pad=auto_pad,
    )
    if attributes.group < 1:
        raise CheckpointError(f"its group is {attributes.group}, less than 1: export the model again")
    return attributes


def convolution(node: Node, graph: Graph) -> Product:
    """The product of a Conv with weights [K, C / group, R, S] or a ConvTranspose with weights [C, K / group, R, S].

    1-D convolutions have no R, and 3-D ones of depth 1 are computed as 2-D ones. Raises UnsupportedError if the node is
    not compiled, UnknownSizeError if height or width is unknown, and CheckpointError for an invalid node.
    """
    transposed = node.operator == "ConvTranspose"
    operands = read_operands(node, graph)
    shape, size = operands.kernel.shape, graph.size(node.inputs[0])
    rank = len(shape)
    if rank == 5:
        if size is None:
            raise UnknownSizeError
        node, shape, size = _without_depth(node, shape, size)
    if len(shape) not in (3, 4) or min(shape) < 1:
        form = "[C, K, R, S]" if transposed else "[K, C, R, S]"
        raise CheckpointError(f"its weights have the shape {list(shape)}, not {form}: export the model again")
    attributes = conv_attributes(node, shape[2:])
    if attributes.kernel_shape != shape[2:]:
        raise _misfit(shape, f"the attribute kernel_shape {list(attributes.kernel_shape)}")
    if shape[0] % attributes.group:
        raise _misfit(shape, f"{attributes.group} groups")
    outputs, channels = shape[0], shape[1] * attributes.group
    if transposed:
        outputs, channels = channels, outputs
    y, x = _axes(attributes, shape, channels, size, transposed)
    kernel = operands.kernel.reshape(*shape[:2], y.kernel, x.kernel)
    sizes = (
        channels,
        y.size,
        x.size,
        outputs,
        y.kernel,
        x.kernel,
        (y.stride, x.stride),
        (y.begin, x.begin, y.end, x.end),
        (y.dilation, x.dilation),
        attributes.group,
    )
    spec: Conv2d | ConvTranspose2d = Conv2d(*sizes, data_type=operands.data_type)
    if transposed:
        spec = ConvTranspose2d(*sizes, (y.output_padding, x.output_padding), data_type=operands.data_type)
        kernel = output_channels_first(kernel, attributes.group)
    if min(spec.output_height, spec.output_width) < 1:
        raise _misfit(shape, f"an input of the shape {in_words(size)} with pads {list(spec.padding)}")
    bias = np.zeros(outputs) if operands.bias is None else operands.bias.astype(np.float64)
    if bias.shape != (outputs,):
        raise CheckpointError(
            f"its biases of the shape {list(bias.shape)} do not fit {outputs} output channels: export the model again"
        )
    return Product(spec, kernel, bias, node.inputs[0], node.outputs[0], output_rank=rank, channel_axis=1)


def _without_depth(node: Node, shape: tuple[int, ...], size: Size) -> tuple[Node, tuple[int, ...], Size]:
    """A 3-D convolution of depth 1 as a 2-D one: node, weights' shape and input's size. Raises UnsupportedError."""
    pads = node.integers.get("pads", ())
    padded = len(pads) == 6 and (pads[0] or pads[3])
    deep = any(
        node.integers.get(name, (least,))[0] > least for name, least in (("output_shape", 1), ("output_padding", 0))
    )
    if len(size) != 5 or size[2] != 1 or shape[2] != 1 or padded or deep:
        raise UnsupportedError(
            "3-D convolution", "it is a 3-D convolution; only 1-D and 2-D ones, and 3-D ones of depth 1, are compiled"
        )
    flat = {name: each[1:] if len(each) == 3 else each for name, each in node.integers.items()}
    if len(pads) == 6:
        flat["pads"] = (*pads[1:3], *pads[4:])
    return replace(node, integers=flat), (*shape[:2], *shape[3:]), (*size[:2], *size[3:])


def output_channels_first(kernel: FloatArray, groups: int) -> FloatArray:
    """Weights [C, K / groups, R, S] as [K, C / groups, R, S]: output channel k is in group k // (K / groups)."""
    channels, outputs, *window = kernel.shape
    grouped = kernel.reshape(groups, channels // groups, outputs, *window).swapaxes(1, 2)
    return np.ascontiguousarray(grouped.reshape(groups * outputs, channels // groups, *window))


def _axes(
    attributes: ConvAttributes, shape: tuple[int, ...], channels: int, size: Size | None, transposed: bool
) -> tuple[Axis, Axis]:
    """The axes height and width, padded, for weights of that shape and an input of that size."""
    if size is None:
        raise UnknownSizeError
    if len(size) != len(shape) or size[1] not in (None, channels):
        raise _misfit(shape, f"an input of the shape {in_words(size)}")
    axes = [Axis()]
    for i, elements in enumerate(size[2:]):
        if elements is None:
            raise UnknownSizeError
        axis = Axis(elements, shape[2 + i], attributes.strides[i], attributes.dilations[i])
        axes.append(_transposed_padding(axis, attributes, i) if transposed else _padding(axis, attributes, i))
    return axes[-2], axes[-1]


def _padding(axis: Axis, attributes: ConvAttributes, i: int) -> Axis:
    """The axis padded as a Conv pads it; SAME gives ceil(size / stride) outputs."""
    if attributes.auto_pad == "NOTSET":
        begin, end = attributes.pads[i :: len(attributes.strides)]
        return replace(axis, begin=begin, end=end)
    if attributes.auto_pad == "VALID":
        return axis
    total = (-(-axis.size // axis.stride) - 1) * axis.stride + axis.extent - axis.size
    return _split(axis, max(total, 0), attributes.auto_pad)


def _transposed_padding(axis: Axis, attributes: ConvAttributes, i: int) -> Axis:
    """The axis with the padding that a ConvTranspose crops off its output.

    SAME keeps size * stride output elements, output_shape its own number.
    """
    axis = replace(axis, output_padding=attributes.output_padding[i])
    if attributes.output_shape:
        elements = attributes.output_shape[i]
    elif attributes.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        elements = axis.size * axis.stride
    else:
        return _padding(axis, attributes, i)
    total = (axis.size - 1) * axis.stride + axis.extent + axis.output_padding - elements
    if total < 0:
        raise UnsupportedError(
            "ambiguous output_shape",
            f"its output_shape has {-total} elements more than its input gives, which programs compute differently; "
            "export it with explicit pads and output_padding",
        )
    return _split(axis, total, attributes.auto_pad)


def _split(axis: Axis, total: int, auto_pad: str) -> Axis:
    """The axis with padding split in halves; an odd element goes to the end with SAME_UPPER, else to the beginning."""
    small, large = total // 2, total - total // 2
    begin, end = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    return replace(axis, begin=begin, end=end)


def _misfit(weights_shape: tuple[int, ...], other: str) -> CheckpointError:
    return CheckpointError(f"its weights of the shape {list(weights_shape)} do not fit {other}: export the model again")
