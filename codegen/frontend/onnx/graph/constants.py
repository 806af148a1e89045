"""Constants: tensors of a graph that can be computed before the model runs, each computed on its first read."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codegen.errors import CheckpointError
from codegen.frontend.onnx.diagnostics import UnsupportedError
from codegen.frontend.onnx.graph.evaluation import LARGEST_ELEMENTS, SMALL_TENSOR, Evaluator, is_computable
from codegen.frontend.onnx.graph.external_data import ExternalData, find_external_data
from codegen.frontend.onnx.graph.nodes import text

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, SparseTensorProto, TensorProto

    Stored: TypeAlias = TensorProto | SparseTensorProto | NDArray[Any]

LARGEST_RANK = 32
LEAST_BYTES_ALLOWED = 2**29
BYTES_ALLOWED_PER_BYTE = 32
"""Memory limit of constants per byte of the model's files. Sparse constants grow when they are read, computed ones have
intermediate results, and several layers may read one constant."""
REMEMBERED_ELEMENTS = 2**16
"""Most elements of a computed constant that is cached."""


class Constants:
    """The constants of a graph by tensor name: stored ones, and those that nodes compute from constants alone."""

    def __init__(self, graph: GraphProto, folder: Path, opset: int) -> None:
        self._folder = folder
        self._evaluator = Evaluator(opset)
        self._stored = stored_constants(graph)
        self._producers: dict[str, tuple[int, NodeProto]] = {}
        for position, node in enumerate(graph.node):
            if is_computable(node, opset) and all(name in self for name in node.input if name):
                self._producers |= {name: (position, node) for name in node.output if name not in self._stored}
        self._allowed_bytes = LEAST_BYTES_ALLOWED + BYTES_ALLOWED_PER_BYTE * _bytes_in_files(graph, folder)
        self._used_bytes = 0
        self._remembered: dict[str, NDArray[Any]] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._stored.keys() | self._producers.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._stored or name in self._producers

    def small(self, name: str) -> NDArray[Any] | None:
        """The values of a stored constant that may be a shape: at most SMALL_TENSOR elements.

        None for larger or computed constants, other tensors, and constants that cannot be read.
        """
        if name not in self._stored or _elements(self._stored[name]) > SMALL_TENSOR:
            return None
        try:
            return self._read_stored(name)
        except (CheckpointError, UnsupportedError):  # reported for the layer that reads it
            return None

    def read(self, name: str) -> NDArray[Any]:
        """A constant's values, in its own element type.

        Raises KeyError if the tensor is not a constant, UnsupportedError if it cannot be computed or the constants read
        so far exceed the memory limit, and CheckpointError if the stored data contradict their type or shape.
        """
        self._use(0)
        if name in self._stored:
            return self._read_stored(name)
        values: dict[str, NDArray[Any]] = {}
        nodes, last_use = self._nodes_for(name)
        for position, node in nodes:
            for each in filter(None, node.input):
                if each not in values:
                    values[each] = self._remembered[each] if each in self._remembered else self._read_stored(each)
            outputs = self._evaluator.outputs(node, values)
            self._use(sum(array.nbytes for array in outputs.values()))
            self._remembered |= {each: array for each, array in outputs.items() if array.size <= REMEMBERED_ELEMENTS}
            values |= outputs
            for each in {*node.input, *node.output} - {name}:
                if last_use.get(each, -1) <= position:
                    values.pop(each, None)
        return values[name] if nodes else self._remembered[name]

    def _read_stored(self, name: str) -> NDArray[Any]:
        stored = self._stored[name]
        self._use(_bytes_in_memory(stored))
        return _array(stored, self._folder)

    def _use(self, byte_count: int) -> None:
        self._used_bytes += byte_count
        if self._used_bytes > self._allowed_bytes:
            raise UnsupportedError(
                "constants too large",
                f"the constants of the model take more than {_size_text(self._allowed_bytes)} in memory, far more "
                "than its files; store them as dense initializers",
            )

    def _nodes_for(self, name: str) -> tuple[list[tuple[int, NodeProto]], dict[str, int]]:
        """The nodes to evaluate for a constant, in graph order; and the position of each tensor's last reader."""
        nodes: dict[int, NodeProto] = {}
        last_use: dict[str, int] = {}
        waiting = [name]
        while waiting:
            tensor = waiting.pop()
            if tensor in self._producers and tensor not in self._remembered:
                position, node = self._producers[tensor]
                if position not in nodes:
                    nodes[position] = node
                    waiting += filter(None, node.input)
                    last_use |= {each: max(position, last_use.get(each, -1)) for each in node.input}
        return sorted(nodes.items(), key=lambda each: each[0]), last_use


def stored_constants(graph: GraphProto) -> dict[str, Stored]:
    """Initializers and the outputs of Constant nodes."""
    constants: dict[str, Stored] = {tensor.name: tensor for tensor in graph.initializer}
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
    """The file range of a tensor stored beside the model; None for one inside it. Raises CheckpointError."""
    if tensor.data_location != tensor.EXTERNAL:
        return None
    entries = {text(entry.key): text(entry.value) for entry in tensor.external_data}
    return find_external_data(folder, entries, _byte_count(tensor))


def _byte_count(tensor: TensorProto) -> int | None:
    """Bytes of a tensor's elements; None for types below one byte, strings and unknown types."""
    from onnx import helper

    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, TypeError):
        return None
    packed = dtype.name in ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")
    return None if packed or dtype.hasobject else prod(tensor.dims) * dtype.itemsize


def _elements(stored: Stored) -> int:
    return stored.size if isinstance(stored, np.ndarray) else prod(stored.dims)


def _bytes_in_memory(stored: Stored) -> int:
    import onnx

    if isinstance(stored, onnx.SparseTensorProto):
        per_element = (_byte_count(stored.values) or 0) // max(prod(stored.values.dims), 1)
        byte_count: int = prod(stored.dims) * per_element
        return byte_count
    return (_byte_count(stored) or 0) if isinstance(stored, onnx.TensorProto) else stored.nbytes


def _size_text(byte_count: int) -> str:
    return f"{byte_count / 2**30:.1f} GB" if byte_count > 2**28 else f"{byte_count / 2**20:.1f} MB"


def _bytes_in_files(graph: GraphProto, folder: Path) -> int:
    """Size of the graph and of each external data file that it names."""
    files = {each.path for tensor in graph.initializer if (each := external_data(tensor, folder)) is not None}
    # Part by part: ByteSize of the whole graph would serialize it.
    tensors = sum(len(tensor.raw_data) or tensor.ByteSize() for tensor in graph.initializer)
    others: int = sum(part.ByteSize() for part in (*graph.node, *graph.sparse_initializer))
    return tensors + others + sum(path.stat().st_size for path in files)


def _array(stored: Stored, folder: Path) -> NDArray[Any]:
    import onnx

    if isinstance(stored, onnx.SparseTensorProto):
        return _scatter(tuple(stored.dims), _dense(stored.values, folder), _dense(stored.indices, folder))
    return _dense(stored, folder) if isinstance(stored, onnx.TensorProto) else stored


def _scatter(shape: tuple[int, ...], values: NDArray[Any], indices: NDArray[Any]) -> NDArray[Any]:
    """A dense array of zeros with `values` at `indices`: positions [n] in the flattened array or coordinates [n, rank].

    Raises CheckpointError if the indices do not fit the shape or the values.
    """
    if min(shape, default=1) < 0 or prod(shape) > LARGEST_ELEMENTS:
        raise CheckpointError(f"a sparse constant has the shape {list(shape)}: store it as a dense one")
    try:
        positions = indices.astype(np.int64)
        if positions.ndim == 2:
            positions = np.ravel_multi_index(tuple(positions.T), shape).astype(np.int64)
        if positions.shape != values.shape or (positions.size and positions.min() < 0):
            raise IndexError("one index per value, 0 or more")
        dense = np.zeros(prod(shape), values.dtype)
        dense[positions] = values
        return dense.reshape(shape)
    except (IndexError, ValueError) as error:
        raise CheckpointError(
            f"the indices of a sparse constant do not fit ({error}): export the model again"
        ) from error


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
    except (KeyError, TypeError, ValueError) as error:  # unknown type; type 0; data of another size
        raise CheckpointError(
            f"a constant of the shape {shape} cannot be read ({error}): export or copy the model again"
        ) from error
    return array
