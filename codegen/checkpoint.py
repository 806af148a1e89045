"""An ONNX file read into a Checkpoint: convolutions as layers, other nodes with weights as skipped, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from codegen.errors import CheckpointError
from codegen.keys import digest_fields
from codegen.layers import Checkpoint, Layer
from codegen.model.convolution import UnknownSizeError, UnsupportedError
from codegen.model.external_data import ExternalData, find_external_data
from codegen.model.input_shapes import Size, check_input_shapes, unknown_size_reason
from codegen.model.nodes import NOT_COMPILED, ONNX_DOMAINS, Node, Tensors, read_node, unique_names
from codegen.model.stored_tensor import SparseStoredTensor, StoredTensor
from codegen.spec import SkippedLayer

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto

    Constant: TypeAlias = TensorProto | SparseTensorProto

OLDEST_OPSET = 7
LARGEST_FILE_BYTES = 2**31 - 1
"""Protobuf's limit."""
SMALL_TENSOR = 1024
"""Constants of up to this many elements may be shapes: shape inference sees their values."""

SHOWN_REASONS = 5


def read_checkpoint(path: Path | str, input_shapes: Mapping[str, tuple[int, ...]] | None = None) -> Checkpoint:
    """Reads an ONNX model (opset 7 or later): weights in initializers, Constant nodes or files beside the model.

    `input_shapes` sets the shapes of graph inputs by name, for models whose height and width are not fixed.
    -0.0 is read as 0.0. Raises CheckpointError, one line that names the file.
    """
    path = Path(path)
    try:
        model = _parse(path)
        _check_opset(model)
        _set_input_shapes(model.graph, input_shapes or {})
        layers, skipped = _read_graph(model, path.resolve().parent)
        _check_not_empty(layers, skipped)
    except CheckpointError as error:
        raise CheckpointError(" ".join(f"{path}: {error}".splitlines())) from error
    return Checkpoint(path.stem, str(path), _digest(layers, skipped), tuple(layers), tuple(skipped))


def _parse(path: Path) -> ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        if path.is_dir():
            raise CheckpointError("it is a directory: give the ONNX file in it")
        if path.exists() and not path.is_file():
            raise CheckpointError("it is not a regular file: give an ONNX file")
        if (size := path.stat().st_size) > LARGEST_FILE_BYTES:
            raise CheckpointError(f"it has {size} bytes, protobuf reads 2 GB: export the weights as external data")
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError("there is no such file: check the path") from error
    except OSError as error:
        raise CheckpointError(f"it cannot be read ({error.strerror}): check the file and its permissions") from error
    if not data:
        raise CheckpointError("it is empty: export or copy the model again")
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise CheckpointError("it is not an ONNX model, or was cut short: export or copy the model again") from error
    if not model.graph.node:
        raise CheckpointError("it is not an ONNX model, or was cut short (no graph): export or copy the model again")
    return model


def _check_opset(model: ModelProto) -> None:
    versions = [opset.version for opset in model.opset_import if opset.domain in ONNX_DOMAINS]
    if not versions:
        raise CheckpointError("it names no opset of ONNX's operators, or was cut short: export or copy the model again")
    if (opset := max(versions)) < OLDEST_OPSET:
        raise CheckpointError(
            f"its opset {opset} is older than {OLDEST_OPSET}: convert it with onnx.version_converter or export it again"
        )


def _inputs(graph: GraphProto) -> dict[str, Size | None]:
    """Without the weights, which ONNX lists among the inputs of old models."""
    weights = {tensor.name for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))}
    return {_text(value.name): _size(value) for value in graph.input if value.name not in weights}


def _size(value: ValueInfoProto) -> Size | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(dimension.dim_value if dimension.dim_value > 0 else None for dimension in tensor.shape.dim)


def _set_input_shapes(graph: GraphProto, input_shapes: Mapping[str, tuple[int, ...]]) -> None:
    check_input_shapes(_inputs(graph), input_shapes)
    for value in graph.input:
        if value.name in input_shapes:
            dimensions = value.type.tensor_type.shape.dim
            del dimensions[:]
            for dimension in input_shapes[value.name]:
                dimensions.add(dim_value=dimension)
    if input_shapes:  # the shapes that the exporter wrote down are those of other inputs
        del graph.value_info[:]
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")


def _infer_shapes(model: ModelProto, folder: Path) -> dict[str, ValueInfoProto]:
    """Every tensor that shape inference knows something about; of large weights it sees the shape only."""
    import onnx

    slim = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    for field in ("node", "input", "output", "value_info"):
        getattr(slim.graph, field).extend(getattr(model.graph, field))
    for tensor in model.graph.initializer:
        stub = slim.graph.initializer.add(name=_text(tensor.name), dims=tensor.dims, data_type=tensor.data_type)
        external = _external_data(tensor, folder)  # checked even if no layer needs it
        if prod(tensor.dims) > SMALL_TENSOR:
            continue
        if external is None:
            stub.CopyFrom(tensor)
        else:
            stub.raw_data = external.read()
    for sparse in model.graph.sparse_initializer:
        slim.graph.initializer.add(name=_text(sparse.values.name), dims=sparse.dims, data_type=sparse.values.data_type)
    try:
        graph = onnx.shape_inference.infer_shapes(slim, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, ValueError) as error:  # ValueError: an unknown type, a bad name
        raise CheckpointError(f"shape inference fails ({error}): check the model with onnx.checker") from error
    return {value.name: value for value in (*graph.value_info, *graph.output, *graph.input)}


def _constants(graph: GraphProto | FunctionProto) -> dict[str, Constant]:
    """Initializers and the outputs of Constant nodes, under every name that Identity nodes give them."""
    import onnx

    constants: dict[str, Constant] = {}
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
                floats = [value.f] if value.name == "value_float" else list(value.floats)
                dims = [] if value.name == "value_float" else [len(floats)]
                constants[node.output[0]] = onnx.TensorProto(
                    dims=dims, data_type=onnx.TensorProto.FLOAT, float_data=floats
                )
        elif node.op_type == "Identity" and node.output and node.input and node.input[0] in constants:
            constants[node.output[0]] = constants[node.input[0]]
    return constants


def _stored(constant: Constant, folder: Path) -> StoredTensor | SparseStoredTensor:
    import onnx

    if isinstance(constant, onnx.SparseTensorProto):
        return SparseStoredTensor(
            tuple(constant.dims), _stored_dense(constant.values, folder), _stored_dense(constant.indices, folder)
        )
    return _stored_dense(constant, folder)


def _stored_dense(tensor: TensorProto, folder: Path) -> StoredTensor:
    data: bytes | ExternalData | Sequence[float] | None = _external_data(tensor, folder)
    if data is None:
        numbers = tensor.int64_data if tensor.data_type == tensor.INT64 else tensor.float_data
        data = tensor.raw_data if tensor.HasField("raw_data") else list(numbers)
    return StoredTensor(tuple(tensor.dims), _element_type(tensor.data_type), data)


def _external_data(tensor: TensorProto, folder: Path) -> ExternalData | None:
    if tensor.data_location != tensor.EXTERNAL:
        return None
    item_bytes = {"float32": 4, "int64": 8}.get(_element_type(tensor.data_type))
    entries = {_text(entry.key): _text(entry.value) for entry in tensor.external_data}
    return find_external_data(folder, entries, prod(tensor.dims) * item_bytes if item_bytes else None)


def _element_type(number: int) -> str:
    """NumPy's name of an ONNX element type where there is one."""
    import onnx

    names: dict[int, str] = {value: name.lower() for name, value in onnx.TensorProto.DataType.items()}
    name = names.get(number, f"type {number}")
    return {"float": "float32", "double": "float64"}.get(name, name)


def _text(name: str | bytes) -> str:
    """Protobuf hands out what is not UTF-8 as bytes."""
    if isinstance(name, bytes):
        raise CheckpointError(
            f"a name in it is not text ({name!r}), the file is damaged: export or copy the model again"
        )
    return name


def _read_graph(model: ModelProto, folder: Path) -> tuple[list[Layer], list[SkippedLayer]]:
    inputs, constants = _inputs(model.graph), _constants(model.graph)
    nodes = list(_nodes_with_weights(model.graph, constants))
    for function in model.functions:
        nodes += _nodes_with_weights(function, {}, f"the function {function.name}")
    values = _infer_shapes(model, folder)
    weights = {name for node in nodes if node.operator == "Conv" and not node.owner for name in node.inputs[1:3]}
    tensors = Tensors(
        {name: _stored(constants[name], folder) for name in weights & constants.keys()},
        {name: _element_type(number) for name, value in values.items() if (number := value.type.tensor_type.elem_type)},
        {name: _size(value) for name, value in values.items()},
    )
    layers, skipped = [], []
    for node, name in zip(nodes, unique_names(nodes), strict=True):
        try:
            layers.append(read_node(node, name, tensors))
        except UnsupportedError as reason:
            skipped.append(SkippedLayer(name, node.operator, str(reason)))
        except UnknownSizeError:
            skipped.append(SkippedLayer(name, node.operator, unknown_size_reason(inputs)))
        except CheckpointError as error:
            raise CheckpointError(f"layer '{name}': {error}") from error
    return layers, skipped


def _nodes_with_weights(
    graph: GraphProto | FunctionProto, constants: Mapping[str, Constant], owner: str = ""
) -> Iterator[Node]:
    """The nodes to compile or to list as skipped, those of sub-graphs after the node that holds them."""
    for node in graph.node:
        if node.op_type in ("Gemm", "MatMul"):
            if any(name in constants for name in node.input[:2]):
                yield _plain(node, owner)
        elif node.op_type == "Conv" or node.op_type in NOT_COMPILED:
            yield _plain(node, owner)
        for attribute in node.attribute:
            for inner in [attribute.g] * attribute.HasField("g") + list(attribute.graphs):
                where = owner or f"a sub-graph of {node.op_type} '{node.name}'"
                yield from _nodes_with_weights(inner, {**constants, **_constants(inner)}, where)


def _plain(node: NodeProto, owner: str) -> Node:
    attributes = {_text(attribute.name): attribute for attribute in node.attribute}
    return Node(
        node.op_type,
        _text(node.domain),
        _text(node.name),
        tuple(map(_text, node.input)),
        tuple(map(_text, node.output)),
        {name: (a.i,) for name, a in attributes.items() if a.type == a.INT}
        | {name: tuple(a.ints) for name, a in attributes.items() if a.type == a.INTS},
        {name: a.s.decode(errors="replace") for name, a in attributes.items() if a.type == a.STRING},
        owner,
    )


def _check_not_empty(layers: list[Layer], skipped: list[SkippedLayer]) -> None:
    if layers:
        return
    if not skipped:
        raise CheckpointError("it has nothing to compile, no node with weights: give a model with 2-D convolutions")
    reasons = "; ".join(f"{layer.name} ({layer.operator}): {layer.reason}" for layer in skipped[:SHOWN_REASONS])
    more = f"; and {len(skipped) - SHOWN_REASONS} more" if len(skipped) > SHOWN_REASONS else ""
    raise CheckpointError(f"it has nothing to compile, every node with weights is skipped: {reasons}{more}")


def _digest(layers: list[Layer], skipped: list[SkippedLayer]) -> str:
    read = [[layer.name, layer.spec.to_json(), layer.weights.digest, layer.input, layer.output] for layer in layers]
    unread = [[layer.name, layer.operator, layer.reason] for layer in skipped]
    return digest_fields({"layers": json.dumps(read), "skipped": json.dumps(unread)})
