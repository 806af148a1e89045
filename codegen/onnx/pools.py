"""Max pools behind layers, which their kernels can compute before they store."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from codegen.layers import Layer, Pool
from codegen.onnx.graph import Graph
from codegen.onnx.nodes import ONNX_DOMAINS, Node
from codegen.operators.geometry import geometry_of
from codegen.operators.pooling import WINDOW, rises
from codegen.spec import Conv2d, prepares_inputs


def with_pool_behind(layer: Layer, graph: Graph, taken: Set[int]) -> Layer:
    """The layer with the MaxPool that follows it named, if its kernel can compute that too; else as it is.

    Only 2x2 windows, two apart, without padding: those of other pools overlap, so that two blocks would need sums of
    each other. Not of 1x1 kernels, whose blocks have no rows, and only if nothing else reads what is pooled.
    """
    spec, node = layer.spec, graph.only_reader(layer.output)
    if node is None or node.position in taken or not _halves(node) or any(map(graph.is_read, node.outputs[1:])):
        return layer
    if not isinstance(spec, Conv2d) or prepares_inputs(spec) or layer.reshaped or not all(map(rises, spec.epilogue)):
        return layer
    if geometry_of(spec).is_pointwise or min(spec.map_height, spec.map_width) < WINDOW:
        return layer
    return replace(layer, pool=Pool(str(node), node.outputs[0]))


def _halves(node: Node) -> bool:
    """Whether it is such a MaxPool; of an odd map the last row is left out."""
    window = (WINDOW, WINDOW)
    return (
        (node.operator, node.domain in ONNX_DOMAINS) == ("MaxPool", True)
        and node.integers.get("kernel_shape") == node.integers.get("strides") == window
        and not any(node.integers.get("pads", ()))
        and node.integers.get("dilations", (1, 1)) == (1, 1)
        and node.integers.get("ceil_mode", (0,)) == (0,)
        and node.strings.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
        and any(node.outputs[:1])
    )
