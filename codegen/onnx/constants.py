"""Constants: the tensors of a graph that can be computed before the model runs, each computed when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codegen.errors import CheckpointError
from codegen.onnx.external_data import ExternalData, find_external_data
from codegen.onnx.nodes import ONNX_DOMAINS, text
from codegen.onnx.reasons import UnsupportedError
from codegen.onnx.sparse_tensor import LARGEST_ELEMENTS, dense_of

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, TypeProto

    Stored: TypeAlias = TensorProto | SparseTensorProto | NDArray[Any]

COMPUTABLE = frozenset(
    {
        *("Identity", "Cast", "DequantizeLinear"),
        *("Concat", "Expand", "Flatten", "Gather", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"),
        *("ConstantOfShape", "Shape"),
        *("Add", "Div", "Exp", "Mul", "Neg", "Pow", "Reciprocal", "Sqrt", "Sub"),
    }
)
"""Operators whose output is a constant when all their inputs are."""

FIRST_OPSETS = {"DequantizeLinear": 19}
"""Where onnx's evaluator knows an operator from this opset on only, and it means the same in those before."""

LARGEST_RANK = 32
SMALL_TENSOR = 1024
"""Constants of up to this many elements may be shapes: shape inference sees their values."""


class Constants:
    """What a graph's nodes can read before the model runs, by the tensors' names."""

    def __init__(self, graph: GraphProto, folder: Path, opset: int) -> None:
        self._folder = folder
        self._opset = opset
        self._stored = stored_constants(graph)
        self._producers: dict[str, tuple[int, NodeProto]] = {}
        for position, node in enumerate(graph.node):
            computable = node.op_type in COMPUTABLE and node.domain in ONNX_DOMAINS and any(node.input)
            if computable and all(name in self for name in node.input if name):
                self._producers |= {name: (position, node) for name in node.output if name not in self._stored}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._stored.keys() | self._producers.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._stored or name in self._producers

    def read(self, name: str) -> NDArray[Any]:
        """A constant's values, of the type that the graph gives them.

        Raises KeyError for what is no constant, UnsupportedError if it cannot be computed, and CheckpointError if the
        file does not hold what it says.
        """
        values: dict[str, NDArray[Any]] = {}
        for stored in self._stored_inputs(name):
            values[stored] = _array(self._stored[stored], self._folder)
        for node in self._nodes_for(name):
            values |= _computed(node, values, self._opset)
        return values[name]

    def _needed(self, name: str) -> set[str]:
        needed: set[str] = set()
        waiting = [name]
        while waiting:
            tensor = waiting.pop()
            if tensor not in needed:
                needed.add(tensor)
                if tensor in self._producers:
                    waiting += [each for each in self._producers[tensor][1].input if each]
        return needed

    def _stored_inputs(self, name: str) -> list[str]:
        return sorted(self._needed(name) & self._stored.keys())

    def _nodes_for(self, name: str) -> list[NodeProto]:
        """In graph order."""
        producers = dict(self._producers[tensor] for tensor in self._needed(name) & self._producers.keys())
        return [producers[position] for position in sorted(producers)]


def stored_constants(graph: GraphProto | FunctionProto) -> dict[str, Stored]:
    """Initializers and the outputs of Constant nodes."""
    import onnx

    constants: dict[str, Stored] = {}
    if isinstance(graph, onnx.GraphProto):
        constants |= {tensor.name: tensor for tensor in graph.initializer}
        constants |= {tensor.values.name: tensor for tensor in graph.sparse_initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output and node.attribute:
            value = node.attribute[0]
            if value.HasField("t"):
                constants[node.output[0]] = value.t
            elif value.HasField("sparse_tensor"):
                constants[node.output[0]] = value.sparse_tensor
            elif value.name in ("value_float", "value_floats"):
                numbers = value.f if value.name == "value_float" else list(value.floats)
                constants[node.output[0]] = np.array(numbers, np.float32)
            elif value.name in ("value_int", "value_ints"):
                constants[node.output[0]] = np.array(value.i if value.name == "value_int" else list(value.ints))
    return constants


def external_data(tensor: TensorProto, folder: Path) -> ExternalData | None:
    """Where the tensor's bytes are if they are beside the model. Raises CheckpointError if they are not there."""
    if tensor.data_location != tensor.EXTERNAL:
        return None
    entries = {text(entry.key): text(entry.value) for entry in tensor.external_data}
    return find_external_data(folder, entries, _byte_count(tensor))


def _byte_count(tensor: TensorProto) -> int | None:
    """None of types that are smaller than a byte, or unknown."""
    from onnx import helper

    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, TypeError):
        return None
    packed = dtype.name in ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")
    return None if packed or dtype.hasobject else prod(tensor.dims) * dtype.itemsize


def _array(stored: Stored, folder: Path) -> NDArray[Any]:
    import onnx

    if isinstance(stored, onnx.SparseTensorProto):
        return dense_of(tuple(stored.dims), _dense(stored.values, folder), _dense(stored.indices, folder))
    return _dense(stored, folder) if isinstance(stored, onnx.TensorProto) else stored


def _dense(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    import onnx

    if (external := external_data(tensor, folder)) is not None:
        data = external.read()
        tensor = onnx.TensorProto(dims=tensor.dims, data_type=tensor.data_type, raw_data=data)
    shape, byte_count = list(tensor.dims), _byte_count(tensor)
    plausible = min(shape, default=1) >= 0 and len(shape) <= LARGEST_RANK
    if not plausible or (tensor.HasField("raw_data") and byte_count not in (None, len(tensor.raw_data))):
        raise CheckpointError(
            f"a constant of the shape {shape} holds {len(tensor.raw_data)} bytes, not {byte_count}: "
            "the file was cut short or damaged; export or copy it again"
        )
    try:
        array: NDArray[Any] = onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # whatever the library meets in a damaged file
        raise CheckpointError(
            f"a constant of the shape {shape} cannot be read ({error}): export or copy the model again"
        ) from error
    return array


def _computed(node: NodeProto, values: Mapping[str, NDArray[Any]], opset: int) -> dict[str, NDArray[Any]]:
    """The outputs of one node. Raises UnsupportedError if onnx cannot compute it, or if they would be too large."""
    from onnx import helper, reference

    opset = max(opset, FIRST_OPSETS.get(node.op_type, 0))
    inputs = {name: values[name] for name in node.input if name}
    graph = helper.make_graph(
        [node],
        "constant",
        [helper.make_empty_tensor_value_info(name) for name in inputs],
        [helper.make_empty_tensor_value_info(name) for name in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        sizes = [_size(value_type) for value_type in _output_types(node, inputs, opset).values()]
        if max(sizes) > max(LARGEST_ELEMENTS, sum(array.size for array in inputs.values())):
            raise MemoryError(f"{max(sizes)} elements")
        with np.errstate(all="ignore"):
            outputs = reference.ReferenceEvaluator(model).run(None, inputs)
    except Exception as error:  # whatever the library meets: shapes that do not fit, an attribute it does not know
        reason = " ".join(str(error).split())
        raise UnsupportedError(
            f"a constant that it needs cannot be computed: {node.op_type} '{node.name or node.output[0]}' ({reason})"
        ) from error
    return {name: np.asarray(output) for name, output in zip(node.output, outputs, strict=True)}


def _output_types(node: NodeProto, inputs: Mapping[str, NDArray[Any]], opset: int) -> dict[str, TypeProto]:
    """Types and shapes before anything is computed: a few bytes may ask for a tensor of any size."""
    import onnx
    from onnx import helper, numpy_helper, shape_inference

    types = {
        name: helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    }
    data = {name: numpy_helper.from_array(array) for name, array in inputs.items() if array.size <= SMALL_TENSOR}
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    return shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=[helper.make_opsetid("", opset)])


def _size(value_type: TypeProto) -> int:
    shape = value_type.tensor_type.shape
    if not value_type.tensor_type.HasField("shape") or not all(each.HasField("dim_value") for each in shape.dim):
        raise ValueError("its shape does not follow from its inputs")
    return prod(dimension.dim_value for dimension in shape.dim)
