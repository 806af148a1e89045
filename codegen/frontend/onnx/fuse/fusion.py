"""Fusion of a product with the nodes after it that the same kernel can compute, into one layer."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from math import isfinite

import numpy as np

from codegen.frontend.onnx.diagnostics import UnsupportedError
from codegen.frontend.onnx.extract.product import Product
from codegen.frontend.onnx.extract.weights import rounded
from codegen.frontend.onnx.fuse.activation_patterns import match_activation
from codegen.frontend.onnx.fuse.epilogue_steps import activation, residual
from codegen.frontend.onnx.fuse.folding import Affine, arithmetic, batch_normalization, channel_values, folded
from codegen.frontend.onnx.fuse.quantization import quantization
from codegen.frontend.onnx.fuse.view_nodes import Axes, axes_after, axes_transposed, is_copy, is_reshape, is_transpose
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, Node
from codegen.ir.checkpoint import Layer
from codegen.ir.layer_spec import AddResidual, Scale, Step

EPSILON = 1e-5
"""Epsilon of a BatchNormalization that does not give one."""


@dataclass
class _Fusion:
    """A layer under construction, which fuses one node after the other."""

    product: Product
    graph: Graph
    output: str
    axes: Axes
    """Axes of the output."""
    affine: Affine
    steps: list[Step] = field(default_factory=list)
    residual: str = ""
    nodes: list[Node] = field(default_factory=list)
    reshaped: list[str] = field(default_factory=list)
    """Outputs of the nodes that only reshape or transpose."""
    is_transposed: bool = False
    """Whether the output's elements are in another order than the layer's."""

    def take(self, taken: Set[int]) -> Sequence[Node]:
        """Fuses and returns the next nodes after the output: one node, or the nodes of one activation.

        Nodes in between that only reshape or transpose are fused with them. Nodes at positions in `taken` are not
        fused. Empty if the kernel cannot compute the next node.
        """
        before_it = self.output, self.axes, self.is_transposed
        reshaping: list[Node] = []
        try:
            while not (nodes := self._next(taken, before_it[0])) and (node := self._reader(taken)):
                if not reshaping and is_copy(node, self.graph, self.output):
                    nodes = [node]
                    break
                if is_copy(node, self.graph, self.output) or is_reshape(node, self.graph, self.output):
                    before, after = (self.graph.size(name) for name in (self.output, node.outputs[0]))
                    self.axes = axes_after(self.axes, before, after, self.product.spec.output_channels)
                elif is_transpose(node, self.graph, self.output):
                    self.axes, self.is_transposed = axes_transposed(self.axes, node), True
                else:
                    break
                reshaping.append(node)
                self.output = node.outputs[0]
        except UnsupportedError:  # one of the constants cannot be computed
            nodes = []
        if not nodes:
            self.output, self.axes, self.is_transposed = before_it
            return []
        self.output = nodes[-1].outputs[0]
        self.nodes += [*reshaping, *nodes]
        self.reshaped += [node.outputs[0] for node in reshaping]
        return [*reshaping, *nodes]

    def _next(self, taken: Set[int], reshaped: str) -> Sequence[Node]:
        """The next nodes that the kernel can compute, whose steps are added; `reshaped` is the output before views."""
        pattern = match_activation(self.graph, self.output, self.product.spec.data_type)
        if pattern is not None and taken.isdisjoint(node.position for node in pattern.nodes):
            self.steps.append(pattern.step)
            return pattern.nodes
        node = self._reader(taken)
        if node is None:
            return []
        quantized = quantization(node, self.graph, self.output)
        if quantized is not None:
            self.steps.append(quantized[1])
            return [node, quantized[0]]
        fused = self._scales(node) if self.steps else self._folds(node)
        return [node] if fused or self._steps(node) or self._adds(node, reshaped) else []

    def _reader(self, taken: Set[int]) -> Node | None:
        """The output's only reader, if other nodes read its first output only; else None."""
        node = self.graph.only_reader(self.output)
        if node is None or node.position in taken or node.domain not in ONNX_DOMAINS or not any(node.outputs[:1]):
            return None
        return None if any(self.graph.is_read(name) for name in node.outputs[1:]) else node

    def _folds(self, node: Node) -> bool:
        affine = affine_of(node, self.output, self.axes, self.product.spec.output_channels, self.graph)
        if affine is None:
            return False
        affine = affine.after(self.affine)
        fits = _stays_finite(self.product, affine)
        if fits:
            self.affine = affine
        return fits

    def _scales(self, node: Node) -> bool:
        """Fuses a factor or summand for all channels, which follows a step."""
        affine = affine_of(node, self.output, Axes(self.axes.rank, None), 1, self.graph)
        if affine is None:
            return False
        last = self.steps[-1]
        if isinstance(last, Scale):
            affine = affine.after(Affine(np.array([last.factor]), np.array([last.shift])))
        factor, shift = (rounded(each, "float32").item() for each in (affine.scale, affine.offset))
        fits = isfinite(factor) and isfinite(shift)
        if fits:
            self.steps[-isinstance(last, Scale) or len(self.steps) :] = [Scale(factor, shift)]
        return fits

    def _steps(self, node: Node) -> bool:
        steps = activation(node, self.graph, self.output)
        self.steps += steps or ()
        return steps is not None

    def _adds(self, node: Node, reshaped: str) -> bool:
        # The summand cannot depend on this layer, whose output only this node reads.
        added = "" if self.residual or self.is_transposed else residual(node, self.graph, self.output, reshaped)
        if added:
            self.residual = added
            self.steps.append(AddResidual())
        return bool(added)


@dataclass(frozen=True)
class FusedLayer:
    """A layer, and the position of its last node in the graph."""

    layer: Layer
    position: int


def fuse(product: Product, node: Node, name: str, graph: Graph, taken: set[int]) -> FusedLayer:
    """The layer of a node's product and of the nodes after it, whose positions are added to `taken`.

    A node is fused if it is the only reader so far and not in `taken`: an Add of two layers goes to the layer fused
    first. Raises UnsupportedError if the weights are not finite in their data type.
    """
    outputs = product.spec.output_channels
    affine = Affine(np.ones(outputs), np.zeros(outputs))
    if not _stays_finite(product, affine):
        fact = f"its weights times alpha {product.alpha} are not finite in {product.spec.data_type}"
        raise UnsupportedError("weights not finite", fact)
    fusion = _Fusion(product, graph, product.output, Axes(product.output_rank, product.channel_axis), affine)
    if product.residual:
        fusion.residual = product.residual
        fusion.steps.append(AddResidual())
    while nodes := fusion.take(taken):
        taken.update(node.position for node in nodes)
    layer = Layer(
        name,
        replace(product.spec, epilogue=tuple(fusion.steps)),
        folded(product.kernel, product.bias, product.alpha, fusion.affine, product.spec.data_type),
        product.input,
        fusion.output,
        fusion.residual,
        product.rows,
        tuple(map(str, fusion.nodes)),
        node.operator,
        tuple(fusion.reshaped),
    )
    return FusedLayer(layer, fusion.nodes[-1].position if fusion.nodes else node.position)


def _stays_finite(product: Product, affine: Affine) -> bool:
    """Whether the folded weights are finite in their data type, judged by each output channel's largest weight."""
    weights = folded(product.peaks, product.bias, product.alpha, affine, product.spec.data_type)
    return bool(np.isfinite(weights.kernel).all() and np.isfinite(weights.bias).all())


def affine_of(node: Node, tensor: str, axes: Axes, channels: int, graph: Graph) -> Affine | None:
    """The affine map that a node applies to a tensor with these channels; None if it is not one per channel."""
    rank, axis = axes.rank, axes.channel
    if node.operator == "BatchNormalization":
        names = node.inputs[1:5]
        # Before opset 14, further outputs mean training mode.
        training = node.integer("training_mode", 0) or any(node.outputs[1:]) or not node.integer("spatial", 1)
        per_channel = rank is not None and rank > 1 and axis is not None and axis % rank == 1
        if training or not per_channel or len(names) != 4 or not all(each in graph.constants for each in names):
            return None
        scale, shift, mean, variance = (graph.numbers(each) for each in names)
        if any(each.shape != (channels,) for each in (scale, shift, mean, variance)):
            return None
        return batch_normalization(scale, shift, mean, variance, node.floats.get("epsilon", EPSILON))
    if node.operator not in ("Add", "Sub", "Mul", "Div") or len(node.inputs) != 2:
        return None
    constant_first = node.inputs[1] == tensor
    other = node.inputs[0 if constant_first else 1]
    if other not in graph.constants:
        return None
    constant = channel_values(graph.numbers(other), channels, rank, axis)
    return None if constant is None else arithmetic(node.operator, constant, constant_first)
