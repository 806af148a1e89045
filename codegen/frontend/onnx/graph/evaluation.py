"""Evaluation of single nodes with known inputs by onnx's reference evaluator, within limits of size and work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.onnx.diagnostics import UnsupportedError
from codegen.frontend.onnx.graph.functions import sub_graphs
from codegen.frontend.onnx.graph.library_errors import model_errors
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, text

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto, TypeProto
    from onnx.reference import ReferenceEvaluator

Arrays = Mapping[str, NDArray[Any]]

LARGEST_ELEMENTS = 2**27
"""Most elements of a computed or sparse tensor, whose declared size costs no bytes in the file."""
LARGEST_SLOW_ELEMENTS = 2**16
"""Most elements of a tensor that the evaluator computes element by element in Python."""
MOST_MULTIPLY_ADDS = 2**34
"""Most multiply-adds of a product of two constants."""
SMALL_TENSOR = 1024
"""Most elements of a tensor whose values shape inference sees, since it may be a shape."""

_PRODUCTS = frozenset({"Gemm", "MatMul"})
_FAST = _PRODUCTS | frozenset(
    {
        *("Abs", "Ceil", "Clip", "Elu", "Exp", "Floor", "Identity", "LeakyRelu", "Log", "Neg", "Not", "PRelu"),
        *("Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sqrt", "Tanh"),
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min"),
        *("Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor"),
        *("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
        *("ReduceSumSquare", "BatchNormalization", "InstanceNormalization", "LayerNormalization"),
        *("Cast", "CastLike", "DequantizeLinear", "QuantizeLinear"),
        *("Concat", "Expand", "Flatten", "Gather", "Pad", "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze"),
        *("ConstantOfShape", "Range", "Tile", "Transpose", "Trilu", "Unsqueeze"),
    }
)
"""Operators that the evaluator vectorises with NumPy; it computes the others element by element."""
_NOT_DETERMINISTIC = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    }
)
_EVALUATED_AS = {"BatchNormalization": 14, "DequantizeLinear": 19, "GreaterOrEqual": 16, "LessOrEqual": 16}
"""Lowest opset in which the evaluator implements an operator correctly, where earlier opsets define it equally."""
_NOT_EVALUATED_BEFORE = {"Hardmax": 13, "LogSoftmax": 13, "Softmax": 13}
"""Opset that changed an operator's meaning, where the evaluator implements the new meaning only."""


def is_computable(node: NodeProto, opset: int) -> bool:
    """Whether the evaluator can compute a node and its outputs depend on its inputs alone."""
    return (
        node.domain in ONNX_DOMAINS
        and node.op_type not in _NOT_DETERMINISTIC
        and opset >= _NOT_EVALUATED_BEFORE.get(node.op_type, 0)
        and any(node.input)
        and next(sub_graphs(node), None) is None
    )


@dataclass(frozen=True, eq=False)
class Operation:
    """A node with normalised names: inputs x0, x1, ..., outputs y0, y1, ..."""

    node: NodeProto
    key: bytes
    """Equal for nodes that differ in names only."""

    @classmethod
    def of(cls, node: NodeProto) -> Operation:
        import onnx

        anonymous = onnx.NodeProto(op_type=text(node.op_type), domain=text(node.domain), attribute=node.attribute)
        anonymous.input.extend(f"x{i}" if name else "" for i, name in enumerate(node.input))
        anonymous.output.extend(f"y{i}" if name else "" for i, name in enumerate(node.output))
        return cls(anonymous, anonymous.SerializeToString(deterministic=True))


class Evaluator:
    """Evaluates nodes of one opset. Nodes that differ in names only share a prepared onnx evaluator."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._prepared: dict[bytes, ReferenceEvaluator] = {}

    def outputs(self, node: NodeProto, values: Arrays) -> dict[str, NDArray[Any]]:
        """The outputs of one node. Raises UnsupportedError if onnx cannot compute them or they would be too large."""
        opset = max(self._opset, _EVALUATED_AS.get(node.op_type, 0))
        operation = Operation.of(node)
        places = {f"x{i}": values[name] for i, name in enumerate(node.input) if name}
        try:
            _check_extent(operation.node, places, opset)
        except ValueError as error:
            raise _not_computed(node, error) from error
        try:
            with np.errstate(all="ignore"):
                outputs = self._evaluator(operation, opset).run(None, places)
        # Each operator is plain Python and NumPy that checks its inputs little: a misfit may raise any exception, even
        # ZeroDivisionError.
        except Exception as error:
            raise _not_computed(node, error) from error
        named = [name for name in node.output if name]
        return {name: np.asarray(output) for name, output in zip(named, outputs, strict=True)}

    def _evaluator(self, operation: Operation, opset: int) -> ReferenceEvaluator:
        from onnx import helper, reference

        if operation.key not in self._prepared:
            node = operation.node
            graph = helper.make_graph(
                [node],
                "constant",
                [helper.make_empty_tensor_value_info(name) for name in node.input if name],
                [helper.make_empty_tensor_value_info(name) for name in node.output if name],
            )
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
            self._prepared[operation.key] = reference.ReferenceEvaluator(model)
        return self._prepared[operation.key]


def inferred_types(
    node: NodeProto, types: Mapping[str, TypeProto], data: Mapping[str, TensorProto], opset: int
) -> dict[str, TypeProto]:
    """The types of a node's outputs by name, inferred from the types of its inputs and the values of some.

    Raises ValueError if onnx cannot infer them, as for unknown operators and inputs that do not fit.
    """
    import onnx
    from onnx import helper, shape_inference

    if any(each.name == "num_outputs" and each.i > len(node.output) for each in node.attribute):
        raise ValueError("more outputs than it has")  # onnx would allocate a size for each
    opsets = [helper.make_opsetid("", opset)]
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        return shape_inference.infer_node_outputs(schema, node, dict(types), dict(data), opset_imports=opsets)
    except model_errors() as error:
        raise ValueError(str(error)) from error


def _not_computed(node: NodeProto, error: Exception) -> UnsupportedError:
    which, reason = f"{node.op_type} '{node.name or node.output[0]}'", " ".join(str(error).split())
    return UnsupportedError(
        "constant cannot be computed", f"a constant that it needs cannot be computed: {which} ({reason})"
    )


def _check_extent(node: NodeProto, inputs: Arrays, opset: int) -> None:
    """Raises ValueError if the outputs or the work would be too large, before anything is allocated."""
    sizes = [_size(value_type) for value_type in _output_types(node, inputs, opset).values()]
    given = [array.size for array in inputs.values()]
    if max(sizes) > max(LARGEST_ELEMENTS, sum(given)):
        raise ValueError(f"{max(sizes)} elements")
    if node.op_type not in _FAST and max(*sizes, *given) > LARGEST_SLOW_ELEMENTS:
        raise ValueError(f"{max(*sizes, *given)} elements are too many for this operator")
    if node.op_type in _PRODUCTS and sizes[0] * max(max(array.shape, default=1) for array in inputs.values()) > (
        MOST_MULTIPLY_ADDS
    ):
        raise ValueError("its multiply-adds are too many")


def _output_types(node: NodeProto, inputs: Arrays, opset: int) -> dict[str, TypeProto]:
    from onnx import helper, numpy_helper

    types = {
        name: helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    }
    data = {name: numpy_helper.from_array(array) for name, array in inputs.items() if array.size <= SMALL_TENSOR}
    return inferred_types(node, types, data, opset)


def _size(value_type: TypeProto) -> int:
    shape = value_type.tensor_type.shape
    if not value_type.tensor_type.HasField("shape") or not all(each.HasField("dim_value") for each in shape.dim):
        raise ValueError("its shape does not follow from its inputs")
    return prod(dimension.dim_value for dimension in shape.dim)
