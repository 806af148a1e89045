"""Extraction of all nodes with weights, then fusion of the nodes around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import prod

from codegen.errors import CheckpointError
from codegen.frontend.onnx.diagnostics import NOT_COMPILED, UNKNOWN_SIZE, UnknownSizeError, UnsupportedError
from codegen.frontend.onnx.extract.convolution import convolution
from codegen.frontend.onnx.extract.linear import gemm, matmul
from codegen.frontend.onnx.extract.product import Product
from codegen.frontend.onnx.extract.skipped_nodes import skipped_layer
from codegen.frontend.onnx.fuse.channel_gates import with_channel_gates
from codegen.frontend.onnx.fuse.fusion import FusedLayer, fuse
from codegen.frontend.onnx.fuse.input_affine import with_input_affine
from codegen.frontend.onnx.fuse.input_bounds import with_input_bounds
from codegen.frontend.onnx.fuse.max_pools import with_max_pool
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.input_shapes import MissingShapes
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, Node, unique_names
from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, Linear, SkippedLayer

MOST_ELEMENTS = 2**31 - 1
"""Most elements of a tensor of one image."""
COMPILED = {"Conv": convolution, "ConvTranspose": convolution, "Gemm": gemm, "MatMul": matmul}


def read_layers(nodes: Sequence[Node], graph: Graph, missing: MissingShapes) -> tuple[list[Layer], list[SkippedLayer]]:
    """The layers in an order in which they can run, and the skipped nodes in graph order.

    `missing` explains unknown sizes. Raises CheckpointError, naming the layer, for an invalid node.
    """
    names = unique_names(nodes)
    products: dict[int, Product] = {}
    skipped: dict[int, SkippedLayer] = {}

    @contextmanager
    def reading(i: int) -> Iterator[None]:
        try:
            yield
        except UnsupportedError as reason:
            skipped[i] = skipped_layer(nodes[i], names[i], reason.kind, str(reason), graph)
        except UnknownSizeError:
            skipped[i] = skipped_layer(nodes[i], names[i], UNKNOWN_SIZE, missing.reason(nodes[i].inputs[0]), graph)
        except CheckpointError as error:
            raise CheckpointError(f"layer '{names[i]}': {error}") from error

    for i, node in enumerate(nodes):
        with reading(i):
            products[i] = _product(node, graph)
    fused: list[FusedLayer] = []
    taken: set[int] = set()
    # An Add of two layers goes into the deeper one, the end of a residual block's main branch. Blocks with and without
    # a layer on the shortcut then share templates.
    for i in sorted(products, key=lambda i: (graph.depths[nodes[i].position], i), reverse=True):
        with reading(i):
            fused.append(fuse(products[i], nodes[i], names[i], graph, taken))
    fused.sort(key=lambda each: each.position)
    # After every epilogue is fused: a normalisation between two layers belongs to the first.
    prepared = [with_input_affine(each.layer, graph, taken) for each in fused]
    prepared = [with_input_bounds(with_channel_gates(each, graph, taken), graph, taken) for each in prepared]
    prepared = [with_max_pool(layer, graph, taken) for layer in prepared]
    for layer in prepared:
        _check_size(layer)
    return prepared, [skipped[i] for i in sorted(skipped)]


def _check_size(layer: Layer) -> None:
    """Raises CheckpointError, naming the layer, for numbers of elements that int32 does not hold."""
    spec, rows = layer.spec, layer.rows or 1
    numbers = [each for value in asdict(spec).values() for each in (value if isinstance(value, tuple) else (value,))]
    largest = max(
        rows * prod(spec.input_shape), rows * prod(spec.output_shape), *(each for each in numbers if type(each) is int)
    )
    if not isinstance(spec, Linear):
        largest = max(largest, prod(_padded_shape(spec)))
    if largest > MOST_ELEMENTS:
        raise CheckpointError(
            f"layer '{layer.name}': it has a size of {largest:,}, more than int32 holds: export it for smaller inputs"
        )


def _padded_shape(spec: Conv2d | ConvTranspose2d) -> tuple[int, int, int]:
    """The tensor that the layer's padding adds to, or for a transposed convolution cuts from."""
    top, left, bottom, right = spec.padding
    channels, height, width = spec.output_shape if isinstance(spec, ConvTranspose2d) else spec.input_shape
    return channels, height + top + bottom, width + left + right


def _product(node: Node, graph: Graph) -> Product:
    if node.owner:
        raise UnsupportedError(
            "in a sub-graph",
            f"it is inside {node.owner}; only the main graph and the branch of an If with a known condition are "
            "compiled: fix its inputs with --input-value and --input-shape",
        )
    if reason := NOT_COMPILED.get(node.operator):
        raise UnsupportedError("operator not compiled", reason)
    if node.domain not in ONNX_DOMAINS:
        raise UnsupportedError(
            "operator of another domain", f"it is an operator of the domain '{node.domain}', not ONNX's {node.operator}"
        )
    if not (node.input(0) and node.input(1) and any(node.outputs[:1])):
        raise CheckpointError("it has no weights or no output: export the model again")
    return COMPILED[node.operator](node, graph)
