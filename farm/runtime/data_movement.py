"""ONNX operators that only move elements or change a shape: views, and copies of boxes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import numpy as np

from codegen.frontend.onnx.export.network import NetworkNode
from farm.runtime.lowering import Lowering, Operator, Value, attribute_axes

REPEATING = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
}
"""Ways of Resize to take the nearest element by which a whole factor repeats each one."""


def strides_of(sizes: Sequence[int]) -> list[int]:
    """The strides of a contiguous box."""
    return [*accumulate(reversed(sizes[1:]), lambda a, b: a * b, initial=1)][::-1] if sizes else []


def numbers_of(lowering: Lowering, node: NetworkNode, position: int) -> list[int]:
    """The integers of an input that must be known before the network runs; empty if it is omitted."""
    if len(node.inputs) <= position or not node.inputs[position]:
        return []
    if node.inputs[position] not in lowering.numbers:
        raise lowering.refused(node, f"its input {node.inputs[position]} is computed by the network")
    return [int(each) for each in np.atleast_1d(lowering.numbers[node.inputs[position]])]


def scalar_of(lowering: Lowering, node: NetworkNode, position: int, default: float) -> float:
    """The value of a constant input with one element, or the default if it is omitted."""
    if len(node.inputs) <= position or not node.inputs[position]:
        return default
    constant = lowering.values[node.inputs[position]].constant
    if constant is None or constant.size != 1:
        raise lowering.refused(node, f"its input {node.inputs[position]} is not a constant number")
    return float(constant.ravel()[0])


def _reshape(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    sizes = numbers_of(lowering, node, 1)
    if not node.attributes.get("allowzero", 0):
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    known = prod(size for size in sizes if size != -1)
    sizes = [x.size // known if size == -1 and known else size for size in sizes]
    if prod(sizes) != x.size:
        raise lowering.refused(node, f"from {list(x.shape)} to {sizes}")
    return [x.shaped(sizes)]


def _flatten(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    axis = int(node.attributes.get("axis", 1))
    return [x.shaped((prod(x.shape[:axis]), prod(x.shape[axis:])))]


def _squeeze(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    axes = attribute_axes(node, [None, np.array(numbers_of(lowering, node, 1))] if len(node.inputs) > 1 else [None])
    dropped = {axis % len(x.shape) for axis in axes} or {i for i, size in enumerate(x.shape) if i and size == 1}
    return [x.shaped([size for i, size in enumerate(x.shape) if i not in dropped])]


def _unsqueeze(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    axes = attribute_axes(node, [None, np.array(numbers_of(lowering, node, 1))] if len(node.inputs) > 1 else [None])
    return [x.shaped(np.expand_dims(np.broadcast_to(np.empty(()), x.shape), tuple(axes)).shape)]


def _concat(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    inputs = [lowering.values[name] for name in node.inputs]
    axis = lowering.axis(node, inputs[0], int(node.attributes["axis"]))
    if any(each.constant is not None or each.dtype != inputs[0].dtype for each in inputs):
        raise lowering.refused(node, "of constants, or of two types")
    shape = list(inputs[0].shape)
    shape[axis] = sum(each.shape[axis] for each in inputs)
    output = lowering.new(shape, inputs[0].dtype)
    whole = prod(shape[axis:])
    first = 0
    for each in inputs:
        length = prod(each.shape[axis:])
        box = [prod(shape[1:axis]), length]
        lowering.copied(node, each, output, box, (0, [length, 1]), (first, [whole, 1]))
        first += length
    return [output]


def _transpose(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    order = list(node.attributes.get("perm") or reversed(range(len(x.shape))))
    if order[0] != 0 or x.shape[0] != lowering.images:
        raise lowering.refused(node, "of the images with something else")
    shape = [x.shape[i] for i in order]
    strides = strides_of(x.shape[1:])
    output = lowering.new(shape, x.dtype)
    lowering.copied(node, x, output, shape[1:], (0, [strides[i - 1] for i in order[1:]]), (0, strides_of(shape[1:])))
    return [output]


def _part(lowering: Lowering, node: NetworkNode, x: Value, index: Sequence[slice]) -> Value:
    """Slices of each image."""
    ranges = [range(*each.indices(size)) for each, size in zip(index, x.shape[1:], strict=True)]
    strides = strides_of(x.shape[1:])
    sizes = [len(each) for each in ranges]
    if not all(sizes):
        raise lowering.refused(node, "with an empty slice")
    first = sum(each.start * stride for each, stride in zip(ranges, strides, strict=True))
    steps = [each.step * stride for each, stride in zip(ranges, strides, strict=True)]
    output = lowering.new((x.shape[0], *sizes), x.dtype)
    lowering.copied(node, x, output, sizes, (first, steps), (0, strides_of(sizes)))
    return output


def _slice(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    if len(node.inputs) == 1:
        starts, ends = list(node.attributes["starts"]), list(node.attributes["ends"])
        axes, steps = list(node.attributes.get("axes") or range(len(starts))), [1] * len(starts)
    else:
        starts, ends = numbers_of(lowering, node, 1), numbers_of(lowering, node, 2)
        axes = numbers_of(lowering, node, 3) or list(range(len(starts)))
        steps = numbers_of(lowering, node, 4) or [1] * len(starts)
    index = [slice(None)] * (len(x.shape) - 1)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        last = None if step < 0 and end < -x.shape[axis] else end
        index[lowering.axis(node, x, axis) - 1] = slice(start, last, step)
    return [_part(lowering, node, x, index)]


def _split(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    axis = lowering.axis(node, x, int(node.attributes.get("axis", 0)))
    count = len(node.outputs)
    sizes = numbers_of(lowering, node, 1) or list(node.attributes.get("split") or [-(-x.shape[axis] // count)] * count)
    made, first = [], 0
    for size in sizes:
        index = [slice(None)] * (len(x.shape) - 1)
        index[axis - 1] = slice(first, first + size)
        made.append(_part(lowering, node, x, index))
        first += size
    return made


def _pad(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    x = lowering.values[node.inputs[0]]
    pads = list(node.attributes.get("pads") or numbers_of(lowering, node, 1))
    rank = len(x.shape)
    if node.attributes.get("mode", "constant") != "constant" or len(pads) != 2 * rank or min(pads) < 0 or pads[0]:
        raise lowering.refused(node, "with anything but a constant around each image")
    lowering.axis(node, x, 1)
    shape = [pads[i] + size + pads[rank + i] for i, size in enumerate(x.shape)]
    output = lowering.new(shape, x.dtype)
    blocks, grid = lowering.elementwise(prod(shape[1:]))
    value = scalar_of(lowering, node, 2, node.attributes.get("value", 0.0))
    lowering.step(node, "fill", [output, blocks, prod(shape[1:]), value], output, grid)
    strides = strides_of(shape[1:])
    first = sum(pad * stride for pad, stride in zip(pads[1:rank], strides, strict=True))
    lowering.copied(node, x, output, x.shape[1:], (0, strides_of(x.shape[1:])), (first, strides))
    return [output]


def _resize(lowering: Lowering, node: NetworkNode) -> Sequence[Value]:
    """Each element repeated a whole number of times along each axis."""
    x, given = lowering.values[node.inputs[0]], node.attributes
    way = (given.get("coordinate_transformation_mode", "half_pixel"), given.get("nearest_mode", "round_prefer_floor"))
    factors = _factors(lowering, node, x)
    plain = {"mode": "nearest", "antialias": 0, "keep_aspect_ratio_policy": "stretch"}
    other = (
        way not in REPEATING or "axes" in given or any(given.get(name, each) != each for name, each in plain.items())
    )
    if other or factors[0] != 1 or any(each < 1 or each % 1 for each in factors):
        raise lowering.refused(node, "with anything but the nearest element, a whole number of times")
    box, strides = [1], [x.size // lowering.images]
    for size, stride, factor in zip(x.shape[1:], strides_of(x.shape[1:]), map(int, factors[1:]), strict=True):
        if strides[-1] == size * stride:  # one axis as far as no element is repeated in between
            box[-1] *= size
            strides[-1] = stride
        else:
            box.append(size)
            strides.append(stride)
        if factor > 1:
            box.append(factor)
            strides.append(0)
    shape = [size * int(factor) for size, factor in zip(x.shape, factors, strict=True)]
    output = lowering.new(shape, x.dtype)
    lowering.copied(node, x, output, box, (0, strides), (0, strides_of(box)))
    return [output]


def _factors(lowering: Lowering, node: NetworkNode, x: Value) -> list[float]:
    """Factors of Resize along each axis, from its third or fourth input."""
    lowering.axis(node, x, 1)
    sizes = numbers_of(lowering, node, 3)
    if len(sizes) == len(x.shape):
        return [to / size for to, size in zip(sizes, x.shape, strict=True)]
    scales = lowering.values[node.inputs[2]].constant if len(node.inputs) > 2 and node.inputs[2] else None
    if scales is None or scales.shape != (len(x.shape),):
        raise lowering.refused(node, "without constant scales of all axes")
    return [float(each) for each in scales]


DATA_MOVEMENT: dict[str, Operator] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Transpose": _transpose,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    "Resize": _resize,
}
