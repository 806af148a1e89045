"""Channel gates before a layer, as in squeeze-and-excitation blocks: the kernel multiplies them in on loading."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from codegen.frontend.onnx.fuse.input_bounds import single_use_producer
from codegen.frontend.onnx.graph.graph import Graph
from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import Conv2d, prepares_inputs

MOST_CHANNELS = 4096
"""Most gated channels: one image's gates then leave most of a block's shared memory to the input tile."""


def with_channel_gates(layer: Layer, graph: Graph, taken: Set[int]) -> Layer:
    """The layer fused with the Mul before it, if one factor is a value per image and channel; else unchanged.

    The layer must be the product's only reader, and an unpadded 1x1 convolution that is not depthwise: others would
    multiply an element several times, or for one output channel only. Nodes at positions in `taken` are not fused.
    """
    spec = layer.spec
    if not isinstance(spec, Conv2d) or any(spec.padding) or (spec.kernel_height, spec.kernel_width) != (1, 1):
        return layer
    if spec.channels == spec.groups or spec.channels > MOST_CHANNELS or prepares_inputs(spec):
        return layer
    product = single_use_producer(layer.input, "Mul", graph, taken)
    if product is None or any(name in graph.constants for name in product.inputs):
        return layer
    first, second = product.inputs
    for x, gate in ((first, second), (second, first)):
        if _is_gate(x, gate, graph):
            folded = (str(product), *layer.folded)
            return replace(layer, spec=replace(spec, gated=True), input=x, gate=gate, folded=folded)
    return layer


def _is_gate(x: str, gate: str, graph: Graph) -> bool:
    """Whether `gate` is known to be [N, C, 1, 1] beside x [N, C, H, W]; [N, C, 1] beside [N, C, W] in one dimension."""
    shape, of_gate = graph.shapes.get(x), graph.shapes.get(gate)
    if shape is None or of_gate is None or len(shape) != len(of_gate) or len(shape) < 3:
        return False
    images, channels, *places = of_gate
    return (
        images is not None
        and (images, channels) == shape[:2]
        and all(size == 1 for size in places)
        and all(isinstance(size, int) for size in shape[1:])
        and shape[2:] != of_gate[2:]
    )
