"""Lowers a network to steps: each operator between the compiled layers becomes launches of the kernels in glue.cu."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.onnx.export.network import Network, NetworkNode
from codegen.ir.dtypes import from_float32
from codegen.ir.launch import GridSize
from codegen.ir.layer_spec import LayerSpec
from farm.errors import UsageError
from farm.runtime.plan import Grid, Rows, layer_shape

SAMPLES = (240, 480, 720_720)
"""Numbers of images for which a network of any batch size is lowered; if steps or constants differ, it is refused."""
THREADS = 256
ROW_THREADS = 128
"""Threads of a block that computes one row together, as in glue.cu."""
TILE = 16
"""Tile size of gemm in glue.cu."""
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor, which is computed once and may have several names."""

    shape: tuple[int, ...]
    dtype: str
    root: int | str
    """The number of the step that computes it, or the name of the network's input; tensors of one root share memory."""
    constant: NDArray[Any] | None = None

    @property
    def size(self) -> int:
        return prod(self.shape)

    def shaped(self, shape: Sequence[int]) -> Value:
        """A view with another shape: the same elements in the same order."""
        return Value(tuple(shape), self.dtype, self.root, self.constant)


Given = Value | Rows | int | float
"""An argument of a step before its tensors have places."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A step before its tensors have places: a launch of a glue kernel, or a compiled layer if `layer` is set."""

    kernel: str
    layer: str
    rows: int
    grid: Grid
    threads: int
    arguments: tuple[Given, ...]
    outputs: tuple[Value, ...]
    """The arguments that the step writes."""
    tensor: str


class RefusedError(UsageError):
    """The network has something that the runtime does not run."""


Operator: TypeAlias = Callable[["Lowering", NetworkNode], "Sequence[Value]"]
"""Adds the steps of a node and gives its outputs."""


class Lowering:
    """One pass over a network for a number of images."""

    def __init__(
        self, network: Network, specs: Mapping[str, LayerSpec], operators: Mapping[str, Operator], images: int
    ) -> None:
        """Lowers the network. Raises RefusedError, which names what the runtime does not run."""
        self.images = images
        self.opset = network.opset
        self.steps: list[Lowered] = []
        self.values: dict[str, Value] = {}
        self.numbers: dict[str, NDArray[Any]] = {}
        self._specs = specs
        self._operators = operators
        for name, array in network.constants.items():
            if array.dtype.kind in "iub":
                self.numbers[name] = array
            self.values[name] = Value(array.shape, array.dtype.name, f"constant {name}", array)
        for given in network.inputs:
            if any(not isinstance(size, int) for size in given.shape[1:]):
                raise RefusedError(f"the input {given.name} has open sizes: compile with --input-shape")
            if not given.shape:
                raise RefusedError(
                    f"the input {given.name} is one number: fix it with --input-value {given.name}=NUMBER"
                )
            if given.dtype not in DTYPES:
                raise RefusedError(f"the input {given.name} has type {given.dtype}: use farm run or farm.torch")
            sizes = tuple(size for size in given.shape[1:] if isinstance(size, int))
            first = given.shape[0] if isinstance(given.shape[0], int) else images
            self.values[given.name] = Value((first, *sizes), given.dtype, given.name)
        self._check_operators(network)
        for node in network.nodes:
            self._lower(node)

    def _check_operators(self, network: Network) -> None:
        """Raises RefusedError with all operators that are not known."""
        known = {*self._operators, *SHAPES}
        unknown = sorted({node.operator for node in network.nodes if not node.layer and node.operator not in known})
        if unknown:
            raise RefusedError(f"the runtime does not run {', '.join(unknown)}: use farm run or farm.torch")

    def _lower(self, node: NetworkNode) -> None:
        if node.layer:
            made: Sequence[Value] = [self._layer(node)]
        elif self._compute(node):
            return
        elif node.operator not in self._operators:
            raise self.refused(node, "its inputs are not known before the network runs")
        else:
            for name in filter(None, node.inputs):
                if name not in self.values:
                    raise self.refused(node, f"its input {name} is not known")
            made = self._operators[node.operator](self, node)
        for name, value in zip(node.outputs, made, strict=False):
            if name:
                self.values[name] = value

    def refused(self, node: NetworkNode, why: str) -> RefusedError:
        return RefusedError(f"the runtime does not run {node} ({why}): use farm run or farm.torch")

    # Building blocks of the operators.

    def inner(self, node: NetworkNode, value: Value) -> tuple[int, ...]:
        """The sizes of one image. If rows of all images come first, its number of rows is the first size."""
        first = value.shape[0] if value.shape else 0
        if first % self.images or not first:
            raise self.refused(node, f"a tensor of {list(value.shape)} does not have the images as its first size")
        return (() if first == self.images else (first // self.images,)) + value.shape[1:]

    def step(
        self,
        node: NetworkNode,
        kernel: str,
        arguments: Sequence[Given],
        output: Value,
        grid: Grid,
        *,
        threads: int = THREADS,
        rows: int = 1,
    ) -> Value:
        """Adds a launch that writes `output`, one of its arguments."""
        if output.dtype not in DTYPES:
            raise self.refused(node, f"of {output.dtype}")
        name = f"{kernel}_{output.dtype}"
        self.steps.append(Lowered(name, "", rows, grid, threads, tuple(arguments), (output,), node.outputs[0]))
        return output

    def new(self, shape: Sequence[int], dtype: str) -> Value:
        """A new tensor, which the next step computes."""
        return Value(tuple(shape), dtype, len(self.steps))

    def elementwise(self, count: int) -> tuple[int, Grid]:
        """The number of blocks for one image, with a thread for each output, and the grid."""
        blocks = -(-count // THREADS)
        return blocks, (GridSize(blocks, 1), GridSize(), GridSize())

    def floats(self, array: NDArray[Any], dtype: str) -> Value:
        """A constant, converted to the type of the tensors that it is combined with."""
        if dtype == "bfloat16":
            data = from_float32(np.asarray(array, np.float32), "bfloat16")
        else:
            data = np.asarray(array, dtype)  # no copy where none is needed: weights are large
        return Value(array.shape, dtype, f"constant {id(data)}", data)

    def axis(self, node: NetworkNode, value: Value, axis: int) -> int:
        """The axis counted from the first. Raises RefusedError for the axis of the images."""
        axis = axis % len(value.shape)
        if axis == 0 or value.shape[0] != self.images:
            raise self.refused(node, "along the images")
        return axis

    def copied(
        self,
        node: NetworkNode,
        source: Value,
        target: Value,
        sizes: Sequence[int],
        read: tuple[int, Sequence[int]],
        write: tuple[int, Sequence[int]],
    ) -> None:
        """Adds a copy of a box of each image: `read` and `write` are an offset and strides."""
        if len(sizes) > 4:
            raise self.refused(node, f"of {len(sizes) + 1} dimensions")
        blocks, grid = self.elementwise(prod(sizes))
        padded = [1] * (4 - len(sizes))
        (start, strides), (first, steps) = read, write
        arguments: list[Given] = [source, target, blocks, prod(sizes), *[*padded, *sizes][1:]]
        arguments += [source.size // self.images, start, *[0 for _ in padded], *strides]
        arguments += [target.size // self.images, first, *[0 for _ in padded], *steps]
        self.step(node, "copy", arguments, target, grid)

    def _layer(self, node: NetworkNode) -> Value:
        spec = self._specs[node.layer]
        x, *others = (self.values[name] for name in node.inputs if name)
        if x.dtype != spec.data_type:
            raise self.refused(node, f"it takes {spec.data_type} but is given {x.dtype}")
        taken = prod(spec.input_shape)
        shape = layer_shape(spec, x.shape)
        if shape is None or x.size % (taken * self.images):
            raise self.refused(node, f"it was compiled for {list(spec.input_shape)} but is given {list(x.shape)}")
        output = self.new(shape, spec.data_type)
        none = GridSize()
        rows = x.size // taken // self.images
        arguments = (x, output, *others)
        self.steps.append(Lowered("", node.layer, rows, (none,) * 3, 0, arguments, (output,), node.outputs[0]))
        return output

    # Shapes that the network computes with.

    def _compute(self, node: NetworkNode) -> bool:
        """Computes a node of integers that are known now; False if they are not."""
        name = node.outputs[0]
        if node.operator == "Shape" and node.inputs[0] in self.values:
            shape = self.values[node.inputs[0]].shape
            found = np.array(shape[node.attributes.get("start", 0) : node.attributes.get("end", len(shape))], np.int64)
        elif node.operator in SHAPES and all(each in self.numbers for each in node.inputs if each):
            inputs = [self.numbers[each] if each else None for each in node.inputs]
            found = np.asarray(SHAPES[node.operator](node, *inputs))
        else:
            return False
        self.numbers[name] = found
        self.values[name] = Value(found.shape, found.dtype.name, f"constant {name}", found)
        return True


def attribute_axes(node: NetworkNode, inputs: Sequence[NDArray[Any] | None]) -> list[int]:
    """The axes of Squeeze, Unsqueeze and reductions: an attribute in old opsets, an input in newer ones."""
    if len(inputs) > 1 and inputs[1] is not None:
        return [int(each) for each in np.atleast_1d(inputs[1])]
    return list(node.attributes.get("axes", []))


def _unsqueezed(node: NetworkNode, x: NDArray[Any], *more: NDArray[Any] | None) -> NDArray[Any]:
    return np.expand_dims(x, tuple(attribute_axes(node, (x, *more))))


def _squeezed(node: NetworkNode, x: NDArray[Any], *more: NDArray[Any] | None) -> NDArray[Any]:
    axes = attribute_axes(node, (x, *more))
    return np.squeeze(x, tuple(axes)) if axes else np.squeeze(x)


def _sliced(
    _: NetworkNode, x: NDArray[Any], starts: NDArray[Any], ends: NDArray[Any], *more: NDArray[Any] | None
) -> NDArray[Any]:
    axes = more[0] if more and more[0] is not None else np.arange(len(starts))
    steps = more[1] if len(more) > 1 and more[1] is not None else np.ones(len(starts), np.int64)
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[int(axis)] = slice(int(start), int(end), int(step))
    return x[tuple(index)]


def _divided(_: NetworkNode, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Integer division that rounds towards zero, as ONNX does."""
    quotient: NDArray[Any] = np.trunc(a / b).astype(a.dtype)
    return quotient


SHAPES: dict[str, Callable[..., Any]] = {
    "Shape": lambda _, x: np.array(x.shape, np.int64),
    "Constant": lambda node: node.attributes["value"] if "value" in node.attributes else node.attributes["value_ints"],
    "Gather": lambda node, x, at: np.take(x, at, node.attributes.get("axis", 0)),
    "Concat": lambda node, *xs: np.concatenate(xs, node.attributes["axis"]),
    "Unsqueeze": _unsqueezed,
    "Squeeze": _squeezed,
    "Slice": _sliced,
    "Cast": lambda _, x: x.astype(np.int64),
    "Add": lambda _, a, b: a + b,
    "Sub": lambda _, a, b: a - b,
    "Mul": lambda _, a, b: a * b,
    "Div": _divided,
}
"""Operators on integers that are known before the network runs."""
