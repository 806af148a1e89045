"""Max pools after a layer, which the layer's kernel can compute before it stores."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, Node
from codegen.ir.checkpoint import Layer, Pool
from codegen.ir.epilogue import POOL_STRIDE
from codegen.ir.layer_spec import Conv2d, MaxPool, prepares_inputs
from codegen.kernels.geometry import geometry_of
from codegen.kernels.max_pool import is_monotonic


def with_max_pool(layer: Layer, graph: Graph, taken: Set[int]) -> Layer:
    """The layer with the MaxPool after it recorded, if the layer's kernel can compute that too; else unchanged.

    Windows are 2x2 without padding or 3x3, with stride 2. The pool must be the layer's only reader, and the layer not
    pointwise, since the blocks of pointwise layers have no rows.
    """
    spec, node = layer.spec, graph.only_reader(layer.output)
    if node is None or node.position in taken or any(map(graph.is_read, node.outputs[1:])):
        return layer
    if not isinstance(spec, Conv2d) or prepares_inputs(spec) or layer.reshaped:
        return layer
    if not all(map(is_monotonic, spec.epilogue)):
        return layer
    step = _step(node)
    if step is None or geometry_of(spec).is_pointwise or min(step.outputs(spec.map_height, spec.map_width)) < 1:
        return layer
    return replace(layer, pool=Pool(str(node), node.outputs[0], step))


def _step(node: Node) -> MaxPool | None:
    """The epilogue step of a MaxPool node; None for other nodes and for pools that no kernel computes."""
    window, pads = node.integers.get("kernel_shape"), node.integers.get("pads", (0, 0, 0, 0))
    plain = (
        (node.operator, node.domain in ONNX_DOMAINS) == ("MaxPool", True)
        and node.integers.get("strides") == (POOL_STRIDE, POOL_STRIDE)
        and node.integers.get("dilations", (1, 1)) == (1, 1)
        and node.integers.get("ceil_mode", (0,)) == (0,)
        and node.strings.get("auto_pad", "NOTSET") in (("NOTSET",) if any(pads) else ("NOTSET", "VALID"))
        and any(node.outputs[:1])
    )
    if plain and window == (2, 2) and not any(pads):
        return MaxPool()
    if plain and window == (3, 3) and len(pads) == 4 and {*pads} <= {0, 1}:
        top, left, bottom, right = pads
        return MaxPool(3, (top, left, bottom, right))
    return None
