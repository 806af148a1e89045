"""ONNX reader: a file read into a Checkpoint of layers, skipped nodes with reasons, and the residual graph."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from codegen.errors import CheckpointError
from codegen.frontend.onnx.diagnostics import NOT_COMPILED
from codegen.frontend.onnx.export.residual_graph import OnnxResidualGraph
from codegen.frontend.onnx.extract.layers import COMPILED, read_layers
from codegen.frontend.onnx.extract.skipped_nodes import PRODUCTS, weight_inputs
from codegen.frontend.onnx.fuse.channels_first import channels_first
from codegen.frontend.onnx.graph.conditionals import MOST_LEVELS, fold_conditionals, has_conditionals
from codegen.frontend.onnx.graph.constants import stored_constants
from codegen.frontend.onnx.graph.dimensions import Images, Inputs, Size, images_of
from codegen.frontend.onnx.graph.evaluation import SMALL_TENSOR
from codegen.frontend.onnx.graph.functions import inline_functions, sub_graphs
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.inference import Inference
from codegen.frontend.onnx.graph.input_shapes import MissingShapes, shapes_with
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, Node, text
from codegen.frontend.onnx.graph.quantized_operators import write_as_qdq
from codegen.frontend.onnx.graph.shape_propagation import shape_of
from codegen.frontend.onnx.graph.shape_values import fold_shape_values
from codegen.frontend.onnx.graph.validity import check_graph
from codegen.ir.checkpoint import Checkpoint, Layer
from codegen.ir.layer_spec import LIKELY_ROWS, Quantize, SkippedLayer
from codegen.keys import digest_fields

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

OLDEST_OPSET = 7
LARGEST_FILE_BYTES = 2**31 - 1
"""Protobuf's limit."""

SHOWN_REASONS = 5


def read_checkpoint(
    path: Path | str, input_shapes: Mapping[str, Size] | None = None, input_values: Mapping[str, float] | None = None
) -> Checkpoint:
    """Reads an ONNX model of opset 7 or later, with weights in initializers, Constant nodes or external data.

    Convolutions, transposed convolutions and fully connected layers of the main graph become layers, each fused with
    the nodes that its kernel can compute too, in an order in which they can run. `input_shapes` sets shapes of graph
    inputs by name, for models with open height and width; None is a size that stays open. `input_values` makes inputs
    constants, all elements equal. What the inputs' shapes and values decide is folded: an If, numbers computed from
    shapes. -0.0 is read as 0.0. Raises CheckpointError with one line that names the file.
    """
    path = Path(path)
    try:
        model = _parse(path)
        _opset(model)
        model = inline_functions(model)
        check_graph(model.graph)
        write_as_qdq(model.graph, _opset(model))
        inputs, images = _set_input_shapes(model.graph, input_shapes or {})
        _set_input_values(model.graph, input_values or {})
        inputs = {name: shape for name, shape in inputs.items() if name not in (input_values or {})}
        inference = Inference(model, path.resolve().parent, _opset(model), inputs, images)
        for _ in range(MOST_LEVELS):
            if not has_conditionals(model.graph) or not fold_conditionals(model.graph, inference.branches()):
                break
            check_graph(model.graph)
            inference = Inference(model, path.resolve().parent, _opset(model), inputs, images)
        if fold_shape_values(model.graph, inference.values_of_shapes()):
            inference = Inference(model, path.resolve().parent, _opset(model), inputs, images)
        read_inside = frozenset(_read_in_sub_graphs(model.graph))
        if channels_first(model.graph, inference.constants, inference.tensors, images, read_inside):
            inference = Inference(model, path.resolve().parent, _opset(model), inputs, images)
        layers, skipped, notes = _read_graph(model.graph, inference, inputs, images)
        _check_not_empty(layers, skipped)
    except CheckpointError as error:
        raise CheckpointError(" ".join(f"{path}: {error}".splitlines())) from error
    return Checkpoint(
        path.stem,
        str(path),
        _digest(layers, skipped),
        tuple(layers),
        tuple(skipped),
        OnnxResidualGraph(model, inference.constants, inference.tensors),
        tuple(notes),
        images.fixed,
    )


def _parse(path: Path) -> ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        if path.is_dir():
            raise CheckpointError("it is a directory without a network of TSV files: give the ONNX file in it")
        if path.exists() and not path.is_file():
            raise CheckpointError("it is not a regular file: give an ONNX file")
        if (size := path.stat().st_size) > LARGEST_FILE_BYTES:
            raise CheckpointError(f"it has {size} bytes, more than 2 GB: export the weights as external data")
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError("no such file: check the path") from error
    except OSError as error:
        raise CheckpointError(f"it cannot be read ({error.strerror}): check the file and its permissions") from error
    if not data:
        raise CheckpointError("it is empty: export or copy the model again")
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise CheckpointError("it is not an ONNX model, or was cut short: export or copy the model again") from error
    if not model.graph.node:
        raise CheckpointError("it is not an ONNX model, or was cut short (no nodes): export or copy the model again")
    return model


def _opset(model: ModelProto) -> int:
    """The model's opset of ONNX's own domain. Raises CheckpointError if it is absent or too old."""
    versions: list[int] = [opset.version for opset in model.opset_import if opset.domain in ONNX_DOMAINS]
    if not versions:
        raise CheckpointError("it has no opset of ONNX's operators, or was cut short: export or copy the model again")
    if (opset := max(versions)) < OLDEST_OPSET:
        raise CheckpointError(
            f"its opset {opset} is older than {OLDEST_OPSET}: convert it with onnx.version_converter or export it again"
        )
    return opset


def _set_input_shapes(graph: GraphProto, input_shapes: Mapping[str, Size]) -> tuple[Inputs, Images]:
    """Applies `input_shapes`; returns the inputs' shapes, with symbols for open dimensions, and the batch dimension.

    Old models list weights among the inputs; they are left out here.
    """
    weights = {tensor.name for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))}
    values = {text(value.name): value for value in graph.input if value.name not in weights}
    for name, value in values.items():
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if dimension.dim_value <= 0 and not dimension.dim_param:
                dimension.dim_param = f"{name}[{axis}]"  # makes shapes derived from it comparable
    inputs = {name: shape_of(value.type) for name, value in values.items()}
    given = shapes_with(inputs, input_shapes)
    images = images_of({name: given.get(name) if shape is None else shape for name, shape in inputs.items()}, given)
    for name, shape in given.items():
        dimensions = values[name].type.tensor_type.shape.dim
        del dimensions[:]
        for size in shape:
            if isinstance(size, int):
                dimensions.add(dim_value=size)
            else:
                dimensions.add(dim_param=str(size))
    if given:  # the exporter's shapes belong to other input shapes
        del graph.value_info[:]
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")
    return {**inputs, **given}, images


def _set_input_values(graph: GraphProto, values: Mapping[str, float]) -> None:
    """Turns inputs into constants. Raises CheckpointError for an input that is missing, open, or not small."""
    from onnx import helper, numpy_helper

    inputs = {text(value.name): value for value in graph.input}
    for name, value in values.items():
        if name not in inputs:
            raise CheckpointError(f"no input '{name}' to give the value {value:g}: there are {', '.join(inputs)}")
        tensor = inputs[name].type.tensor_type
        sizes = [dimension.dim_value for dimension in tensor.shape.dim]
        if prod(sizes) > SMALL_TENSOR or min(sizes, default=1) < 1:
            raise CheckpointError(
                f"input '{name}' cannot have the value {value:g}: it is no small tensor of fixed shape"
            )
        array = np.full(sizes, value, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        graph.initializer.append(numpy_helper.from_array(array, name))
        graph.input.remove(inputs[name])


@cache
def _element_type(number: int) -> str:
    """NumPy's name of an ONNX element type, or ONNX's own in lower case."""
    import onnx

    names: dict[int, str] = {value: name.lower() for name, value in onnx.TensorProto.DataType.items()}
    name = names.get(number, f"type {number}")
    return {"float": "float32", "double": "float64"}.get(name, name)


def _read_graph(
    graph: GraphProto, inference: Inference, inputs: Inputs, images: Images
) -> tuple[list[Layer], list[SkippedLayer], list[str]]:
    nodes = tuple(_node_of(node, position=i) for i, node in enumerate(graph.node))
    with_weights = list(_nodes_with_weights(graph, inference.constants.names, nodes))
    tensors = inference.tensors
    known = Graph(
        nodes,
        frozenset(output.name for output in graph.output) | frozenset(_read_in_sub_graphs(graph)),
        inference.constants,
        {name: _element_type(tensor.element_type) for name, tensor in tensors.items() if tensor.element_type},
        {name: tensor.shape for name, tensor in tensors.items()},
        images,
    )
    missing = MissingShapes(inputs, known, inference.shapes_of_given_inputs)
    layers, skipped = read_layers(with_weights, known, missing)
    notes = [
        *_notes_on_rows(layers, missing),
        *_notes_on_integers(layers, nodes),
        *_notes_on_attention(nodes, inference.constants.names),
    ]
    return layers, skipped, notes


def _notes_on_attention(nodes: Sequence[Node], constants: frozenset[str]) -> list[str]:
    multiplying = [
        node
        for node in nodes
        if node.operator in PRODUCTS and node.input(1) and constants.isdisjoint((*node.inputs[:2], *node.outputs))
    ]
    count = len(multiplying) + 2 * sum(node.operator == "Attention" for node in nodes)
    if not count:
        return []
    products = "a product of activations is" if count == 1 else f"{count} products of activations, as of attention, are"
    return [f"{products} left to PyTorch or onnxruntime and counted in no share of multiply-adds"]


def _notes_on_integers(layers: Sequence[Layer], nodes: Sequence[Node]) -> list[str]:
    dequantized = {name for node in nodes if node.operator == "DequantizeLinear" for name in node.outputs}
    quantized = [layer for layer in layers if layer.input in dequantized]
    if not quantized:
        return []
    pairs = sum(node.operator == "QuantizeLinear" for node in nodes)
    fused = sum(isinstance(step, Quantize) for layer in layers for step in layer.spec.epilogue)
    return [
        f"{len(quantized)} of {len(layers)} layers are quantized to integers: compiled in "
        f"{quantized[0].spec.data_type} with dequantized weights"
        + (f", {fused} of {pairs} QuantizeLinear fused into layers" if pairs else "")
    ]


def _notes_on_rows(layers: Sequence[Layer], missing: MissingShapes) -> list[str]:
    unknown = [layer for layer in layers if layer.rows is None]
    if not unknown:
        return []
    options = next(filter(None, (missing.options(layer.input, slice(-1)) for layer in unknown)), "")
    return [
        f"rows per image unknown in {len(unknown)} of {len(layers)} layers: they are tiled for {LIKELY_ROWS}"
        f"{f'. For other lengths give {options}' if options else ''}"
    ]


def _nodes_with_weights(graph: GraphProto, constants: frozenset[str], nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes to compile or to list as skipped; nodes of sub-graphs follow the node that holds them."""
    for proto, node in zip(graph.node, nodes, strict=True):
        if constants.issuperset(node.outputs):  # the node's output is a constant of its readers
            continue
        if node.operator in PRODUCTS:  # a product of two activations, as in attention, has no weights
            if any(node.input(place) in constants for place in weight_inputs(node)):
                yield node
        elif node.operator in COMPILED or node.operator in NOT_COMPILED:
            yield node
        for inner in sub_graphs(proto):
            owner = node.owner or f"a sub-graph of {node.operator} '{node.name}'"
            known = constants | stored_constants(inner).keys()
            yield from _nodes_with_weights(inner, known, [_node_of(each, owner) for each in inner.node])


def _read_in_sub_graphs(graph: GraphProto) -> Iterator[str]:
    """Names that nodes of sub-graphs read, which may be tensors of the graph around them."""
    for node in graph.node:
        for inner in sub_graphs(node):
            yield from (name for each in inner.node for name in each.input)
            yield from (output.name for output in inner.output)
            yield from _read_in_sub_graphs(inner)


def _node_of(node: NodeProto, owner: str = "", position: int = -1) -> Node:
    attributes = {text(attribute.name): attribute for attribute in node.attribute}
    return Node(
        text(node.op_type),
        text(node.domain),
        text(node.name),
        tuple(map(text, node.input)),
        tuple(map(text, node.output)),
        {name: (a.i,) for name, a in attributes.items() if a.type == a.INT}
        | {name: tuple(a.ints) for name, a in attributes.items() if a.type == a.INTS},
        {name: a.f for name, a in attributes.items() if a.type == a.FLOAT},
        {name: a.s.decode(errors="replace") for name, a in attributes.items() if a.type == a.STRING},
        owner,
        position,
    )


def _check_not_empty(layers: list[Layer], skipped: list[SkippedLayer]) -> None:
    if layers:
        return
    if not skipped:
        raise CheckpointError(
            "nothing to compile: it has no node with weights. Give a model with convolutions or fully connected layers"
        )
    names: dict[tuple[str, str], list[str]] = {}
    for layer in skipped:
        names.setdefault((layer.operator, layer.reason), []).append(layer.name)
    causes = [
        f"{first}{f' and {len(others)} more' if others else ''} ({operator}): {reason}"
        for (operator, reason), (first, *others) in names.items()
    ]
    reasons = "; ".join(causes[:SHOWN_REASONS])
    more = f"; and {len(causes) - SHOWN_REASONS} more reasons" if len(causes) > SHOWN_REASONS else ""
    raise CheckpointError(f"nothing to compile: every node with weights is skipped: {reasons}{more}")


def _digest(layers: list[Layer], skipped: list[SkippedLayer]) -> str:
    read = [
        [
            layer.name,
            layer.spec.to_json(),
            layer.weights.digest,
            layer.input,
            layer.output,
            layer.residual,
            layer.gate,
            layer.rows,
            layer.folded,
        ]
        for layer in layers
    ]
    unread = [[layer.name, layer.operator, layer.reason] for layer in skipped]
    return digest_fields({"layers": json.dumps(read), "skipped": json.dumps(unread)})
