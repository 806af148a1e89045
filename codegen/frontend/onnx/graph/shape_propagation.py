"""Propagation of shapes, and of small tensors computed from shapes, through a graph in one pass over its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codegen.errors import CheckpointError
from codegen.frontend.onnx.diagnostics import UnsupportedError
from codegen.frontend.onnx.graph.constants import Constants
from codegen.frontend.onnx.graph.dimensions import Dimension, Shape, is_known
from codegen.frontend.onnx.graph.evaluation import SMALL_TENSOR, Evaluator, Operation, inferred_types, is_computable
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS
from codegen.frontend.onnx.graph.whole_graph import check_rank

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TypeProto


class Tensor(NamedTuple):
    """Element type by ONNX's number (0 if unknown) and shape of a tensor."""

    element_type: int
    shape: Shape | None


UNKNOWN = Tensor(0, None)

Arrays: TypeAlias = dict[str, NDArray[Any]]
ArrayKey: TypeAlias = tuple[str, tuple[int, ...], bytes]


@dataclass(frozen=True, eq=False)
class Step:
    """A node with its operation and names, which protobuf is slow to give."""

    node: NodeProto
    operation: Operation
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class ComputedShapes:
    """Types and shapes of a graph's tensors for several input sizes; equal operations on equal inputs run once."""

    def __init__(self, graph: GraphProto, constants: Constants, opset: int, declared: Mapping[str, Tensor]) -> None:
        """`declared` are the tensors as onnx infers them, without computed shapes."""
        self._steps = _steps(graph)
        self._constants = constants
        self._opset = opset
        self._declared = declared
        self._evaluator = Evaluator(opset)
        self.branches: dict[str, bool] = {}
        """The known conditions of the last call of `at`, by the first output of their If."""
        self.values: Arrays = {}
        """Small constants, and small tensors computed from shapes, as of the last call of `at`."""
        self._inferred: dict[tuple[bytes, tuple[Tensor | None, ...], tuple[ArrayKey | None, ...]], list[Tensor]] = {}
        self._computed: dict[tuple[bytes, tuple[ArrayKey | None, ...]], list[NDArray[Any]]] = {}

    def at(self, dimension: Callable[[Dimension], Dimension]) -> dict[str, Tensor]:
        """Every tensor by name; `dimension` maps each dimension of the file to the value to assume."""
        self.branches, self.values = {}, {}
        names = _Names(dimension)
        tensors = {name: names.replaced(tensor) for name, tensor in self._declared.items()}
        self._follow(self._steps, tensors, self.values)
        for name, tensor in tensors.items():
            names.compare(self._declared.get(name, UNKNOWN), tensor)
        return {name: names.replaced(tensor) for name, tensor in tensors.items()}

    def _follow(self, steps: Sequence[Step], tensors: dict[str, Tensor], values: Arrays) -> None:
        for step in steps:
            for name in step.inputs:
                if name not in values and (small := self._constants.small(name)) is not None:
                    values[name] = small
                    tensors[name] = _tensor_of(small)
            if step.node.op_type == "If":
                self._choose(step.node, tensors, values)
            else:
                self._infer(step, tensors, values)
                self._compute(step, tensors, values)

    def _choose(self, node: NodeProto, tensors: dict[str, Tensor], values: Arrays) -> None:
        """Follows the taken branch of an If with a known condition and copies its outputs."""
        branches = {attribute.name: attribute.g for attribute in node.attribute}
        if not node.input or node.input[0] not in values or len(branches) != 2:
            return
        condition = bool(values[node.input[0]].any())
        self.branches |= dict.fromkeys(node.output[:1], condition)
        branch = branches.get("then_branch" if condition else "else_branch")
        if branch is None or branch.initializer:
            return
        self._follow(_steps(branch), tensors, values)
        for outer, inner in zip(node.output, branch.output, strict=False):
            if inner.name in tensors:
                tensors[outer] = tensors[inner.name]
            if inner.name in values:
                values[outer] = values[inner.name]

    def _infer(self, step: Step, tensors: dict[str, Tensor], values: Arrays) -> None:
        types = tuple([tensors.get(name) if name else None for name in step.inputs])
        if None in types and any(name and name not in tensors for name in step.inputs):
            return
        arrays = [values.get(name) for name in step.inputs]
        key = step.operation.key, types, tuple(map(_key, arrays))
        if key not in self._inferred:
            self._inferred[key] = _inferred(step.operation.node, types, arrays, self._opset)
        for name, tensor in zip(step.outputs, self._inferred[key], strict=False):
            check_rank(name, len(tensor.shape or ()))
            tensors[name] = tensor if is_known(tensor.shape) else _merged(tensor, tensors.get(name, UNKNOWN))

    def _compute(self, step: Step, tensors: dict[str, Tensor], values: Arrays) -> None:
        node = step.node
        if node.op_type in ("Shape", "Size"):
            shape = tensors.get(step.inputs[0], UNKNOWN).shape
            if is_known(shape):
                numbers = np.array(shape, np.int64)
                bounds = {attribute.name: attribute.i for attribute in node.attribute}
                part = numbers[bounds.get("start", 0) : bounds.get("end", len(numbers))]
                values[step.outputs[0]] = part if node.op_type == "Shape" else np.array(prod(shape), np.int64)
            return
        outputs = [name for name in step.outputs if name]
        if node.op_type != "Slice" and not all(_is_small(tensors.get(name, UNKNOWN)) for name in outputs):
            return  # a slice of values is small, and without a known size where it is empty
        if all(name in self._constants for name in outputs):
            with suppress(CheckpointError, UnsupportedError):  # reported for the layer that reads it
                values |= {name: self._constants.read(name) for name in outputs}
            return
        if not all(name in values for name in step.inputs if name) or not is_computable(node, self._opset):
            return
        key = step.operation.key, tuple(_key(values.get(name)) for name in step.inputs)
        if key not in self._computed:
            try:
                self._computed[key] = list(self._evaluator.outputs(node, values).values())
            except UnsupportedError:
                self._computed[key] = []
        for name, array in zip(outputs, self._computed[key], strict=False):
            values[name] = array
            tensors[name] = Tensor(tensors.get(name, UNKNOWN).element_type, array.shape)


def _steps(graph: GraphProto) -> list[Step]:
    known = (node for node in graph.node if node.domain in ONNX_DOMAINS and node.op_type != "Constant")
    return [Step(node, Operation.of(node), tuple(node.input), tuple(node.output)) for node in known]


def _inferred(
    node: NodeProto, tensors: Sequence[Tensor | None], arrays: Sequence[NDArray[Any] | None], opset: int
) -> list[Tensor]:
    """The outputs of a node; empty if onnx cannot infer them or the inputs do not fit."""
    from onnx import numpy_helper

    pairs = list(zip(node.input, tensors, arrays, strict=True))
    types = {name: _type_of(tensor) for name, tensor, _ in pairs if tensor is not None}
    data = {name: numpy_helper.from_array(array) for name, _, array in pairs if array is not None}
    try:
        outputs = inferred_types(node, types, data, opset)
    except ValueError:
        return []
    return [
        Tensor(outputs[name].tensor_type.elem_type, shape_of(outputs[name])) if name in outputs else UNKNOWN
        for name in node.output
    ]


def shape_of(value_type: TypeProto) -> Shape | None:
    """The shape of a type; None if absent. A dimension of 0 counts as unknown, since old exporters wrote that."""
    tensor = value_type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        dimension.dim_value if dimension.dim_value > 0 else dimension.dim_param or None
        for dimension in tensor.shape.dim
    )


def _type_of(tensor: Tensor) -> TypeProto:
    from onnx import helper

    shape = None if tensor.shape is None else [each if isinstance(each, int | str) else None for each in tensor.shape]
    value_type: TypeProto = helper.make_tensor_type_proto(tensor.element_type, shape)
    return value_type


def _tensor_of(array: NDArray[Any]) -> Tensor:
    from onnx import helper

    return Tensor(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


class _Names:
    """Values of dimension symbols: a symbol found to be a number in one tensor has that value in all tensors."""

    def __init__(self, dimension: Callable[[Dimension], Dimension]) -> None:
        self._dimension = dimension
        self._numbers: dict[str, int] = {}

    def compare(self, declared: Tensor, followed: Tensor) -> None:
        """Learns the values of symbols from a tensor as declared and as propagated."""
        if declared.shape is None or followed.shape is None or len(declared.shape) != len(followed.shape):
            return
        for name, number in zip(declared.shape, followed.shape, strict=True):
            if isinstance(name, str) and isinstance(number, int):
                self._numbers.setdefault(name, number)

    def replaced(self, tensor: Tensor) -> Tensor:
        shape = tensor.shape
        return tensor if shape is None or is_known(shape) else Tensor(tensor.element_type, tuple(map(self._of, shape)))

    def _of(self, dimension: Dimension) -> Dimension:
        return self._numbers.get(dimension, self._dimension(dimension)) if isinstance(dimension, str) else dimension


def _merged(inferred: Tensor, declared: Tensor) -> Tensor:
    """Type and shape from both sources, the inferred ones first."""
    element_type = inferred.element_type or declared.element_type
    if inferred.shape is None or declared.shape is None or len(inferred.shape) != len(declared.shape):
        return Tensor(element_type, declared.shape if inferred.shape is None else inferred.shape)
    pairs = zip(inferred.shape, declared.shape, strict=True)
    return Tensor(element_type, tuple(_known(*pair) for pair in pairs))


def _known(inferred: Dimension, declared: Dimension) -> Dimension:
    return declared if inferred is None or (isinstance(declared, int) and isinstance(inferred, str)) else inferred


def _is_small(tensor: Tensor) -> bool:
    return is_known(tensor.shape) and prod(tensor.shape) <= SMALL_TENSOR


def _key(array: NDArray[Any] | None) -> ArrayKey | None:
    return None if array is None else (array.dtype.str, array.shape, array.tobytes())
