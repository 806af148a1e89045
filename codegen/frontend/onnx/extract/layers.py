"""The nodes of a graph that carry weights, each made into a layer or skipped with a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from codegen.errors import CheckpointError
from codegen.frontend.onnx.diagnostics import NOT_COMPILED, UNKNOWN_SIZE, UnknownSizeError, UnsupportedError
from codegen.frontend.onnx.extract.convolution import convolution
from codegen.frontend.onnx.extract.linear import gemm, matmul
from codegen.frontend.onnx.extract.product import Product
from codegen.frontend.onnx.extract.skipped_nodes import skipped_layer
from codegen.frontend.onnx.fuse.channel_gates import with_gates
from codegen.frontend.onnx.fuse.fusion import FusedLayer, fuse
from codegen.frontend.onnx.fuse.input_bounds import with_prologue
from codegen.frontend.onnx.fuse.max_pools import with_pool_behind
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.input_shapes import MissingShapes
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, Node, unique_names
from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import SkippedLayer

COMPILED = {"Conv": convolution, "ConvTranspose": convolution, "Gemm": gemm, "MatMul": matmul}


def read_layers(nodes: Sequence[Node], graph: Graph, missing: MissingShapes) -> tuple[list[Layer], list[SkippedLayer]]:
    """The layers, in an order in which they can run, and the skipped nodes, in graph order.

    `missing` says why a size is not known. Raises CheckpointError, naming the layer, for a node that no program could
    run.
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
    # Of two layers that are added up, the deeper one adds. In a residual block that is the end of the main branch, as
    # it is in blocks that have nothing but the main branch: so they share their templates.
    for i in sorted(products, key=lambda i: (graph.depths[nodes[i].position], i), reverse=True):
        with reading(i):
            fused.append(fuse(products[i], nodes[i], names[i], graph, taken))
    fused.sort(key=lambda each: each.position)
    # Once every layer has taken what follows it: a normalisation that follows one belongs to that.
    prepared = [with_prologue(with_gates(each.layer, graph, taken), graph, taken) for each in fused]
    prepared = [with_pool_behind(layer, graph, taken) for layer in prepared]
    return prepared, [skipped[i] for i in sorted(skipped)]


def _product(node: Node, graph: Graph) -> Product:
    if node.owner:
        raise UnsupportedError("in a sub-graph", f"it is inside {node.owner}; only the main graph is compiled")
    if reason := NOT_COMPILED.get(node.operator):
        raise UnsupportedError("operator not compiled", reason)
    if node.domain not in ONNX_DOMAINS:
        raise UnsupportedError(
            "operator of another domain", f"it is an operator of the domain '{node.domain}', not ONNX's {node.operator}"
        )
    if not (node.input(0) and node.input(1) and any(node.outputs[:1])):
        raise CheckpointError("it has no weights or no output: export the model again")
    return COMPILED[node.operator](node, graph)
