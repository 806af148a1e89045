"""Rewriting of fully connected layers before a Transpose to channels first as 1x1 convolutions.

Blocks of ConvNeXt and MLP-Mixer end with linear layers on the last axis, a Transpose and a residual Add. As
convolutions the layers read and write channels first, the last one computes the Add, and the Transpose moves before
the first one, where it often cancels another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.frontend.onnx.graph.constants import Constants
from codegen.frontend.onnx.graph.dimensions import Images, Shape, is_known
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from codegen.frontend.onnx.graph.shape_propagation import Tensor

_OPERATORS = """
    Add Clip Div Erf Gelu HardSigmoid HardSwish Identity LeakyRelu Mish
    Mul Neg Pow Relu Sigmoid Softplus Sub Swish Tanh
"""
ELEMENTWISE = frozenset(_OPERATORS.split())
"""Operators that map each element by itself, in any order of axes."""
MOST_INPUTS = 1536
"""Most inputs of a rewritten product. Two convolutions took 0.70 to 0.86 times as long as two linear layers in float16
there, and 0.83 to 1.27 times in float32, before the pass that they save; with 3,072 inputs they gained nothing."""


def channels_first(
    graph: GraphProto, constants: Constants, tensors: Mapping[str, Tensor], images: Images, read_inside: frozenset[str]
) -> bool:
    """Rewrites the graph wherever that saves a pass over a tensor, and returns whether it did.

    Height and width must be known, since convolutions need them. `read_inside` are the tensors that sub-graphs read.
    `constants` and `tensors` are invalid for a rewritten graph.
    """
    rewritten = False
    view = _View(graph, constants, tensors, images, read_inside)
    position = 0
    while position < len(graph.node):
        sequence = view.sequence(position)
        if sequence is None:
            position += 1
        else:
            _rewrite(graph, view, sequence)
            rewritten = True
            view = _View(graph, constants, tensors, images, read_inside)
    return rewritten


@dataclass(frozen=True)
class _Segment:
    """A product and the elementwise nodes after it."""

    product: int
    others: tuple[int, ...]
    tensors: frozenset[str]
    inputs: int
    outputs: int


@dataclass(frozen=True)
class _Sequence:
    """Segments that end at a Transpose, the last one first."""

    transpose: int
    segments: tuple[_Segment, ...]
    source: str
    """Tensor that the first product reads."""
    undone: str
    """Input of the Transpose to channels last that computes `source`; empty if another node does."""
    rank: int


class _View:
    """Producers and readers of a graph's tensors, by node position."""

    def __init__(
        self,
        graph: GraphProto,
        constants: Constants,
        tensors: Mapping[str, Tensor],
        images: Images,
        read_inside: frozenset[str],
    ) -> None:
        self.nodes: Sequence[NodeProto] = graph.node
        self.producers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
        self._constants = constants
        self._tensors = tensors
        self._images = images
        self._outside = read_inside | {output.name for output in graph.output}
        self._readers: dict[str, list[int]] = {}
        for i, node in enumerate(graph.node):
            for name in filter(None, node.input):
                self._readers.setdefault(name, []).append(i)

    def sequence(self, position: int) -> _Sequence | None:
        """The sequence before a Transpose to channels first, if rewriting it saves a pass; else None."""
        node = self.nodes[position]
        order = _order(node)
        rank = len(order)
        if rank not in (3, 4) or order != (0, rank - 1, *range(1, rank - 1)):
            return None
        shape = self._shape(node.output[0])
        if shape is None or not is_known(shape[2:]) or self._images.rows(shape[:1]) != 1:
            return None
        segments: list[_Segment] = []
        tensor, reader = node.input[0], position
        while (segment := self._segment(tensor, reader, rank)) is not None:
            segments.append(segment)
            tensor, reader = self.nodes[segment.product].input[0], segment.product
        if not segments:
            return None
        producer = self.producers.get(tensor)
        undone = producer is not None and _order(self.nodes[producer]) == (0, *range(2, rank), 1)
        no_larger = segments[-1].inputs <= segments[0].outputs
        if not undone and not (no_larger and self._is_added(node.output[0])):
            return None
        before = self.nodes[producer].input[0] if undone and producer is not None else ""
        return _Sequence(position, tuple(segments), tensor, before, rank)

    def is_per_channel(self, name: str, rank: int, channels: int) -> bool | None:
        """True for a constant with a value per channel on the last axis, False for a single value, None for others."""
        shape = self._shape(name)
        if not is_known(shape) or len(shape) > rank:
            return None
        if prod(shape) == 1:
            return False
        return True if prod(shape) == shape[-1] == channels else None

    def _segment(self, tensor: str, reader: int, rank: int) -> _Segment | None:
        """The segment that computes a tensor read by `reader` alone; None unless it leads back to one product."""
        products: set[int] = set()
        others: set[int] = set()
        tensors: set[str] = set()
        constants: set[str] = set()
        waiting = [tensor]
        while waiting:
            name = waiting.pop()
            producer = self.producers.get(name)
            if name in tensors:
                continue
            if producer is None:
                return None
            node = self.nodes[producer]
            if node.domain not in ONNX_DOMAINS or len(node.output) != 1:
                return None
            tensors.add(name)
            if node.op_type == "MatMul":
                products.add(producer)
                continue
            if node.op_type not in ELEMENTWISE:
                return None
            others.add(producer)
            for each in filter(None, node.input):
                (constants.add if each in self._constants else waiting.append)(each)
        inside = {reader} | others
        read = {each for name in tensors for each in self._readers.get(name, ())}
        if len(products) != 1 or not read <= inside or not tensors.isdisjoint(self._outside):
            return None
        if self._readers[tensor] != [reader]:
            return None
        [product] = products
        data, weights = self.nodes[product].input
        shape = self._shape(weights) if weights in self._constants and data not in self._constants else None
        if not is_known(shape) or len(shape) != 2 or shape[0] > MOST_INPUTS:
            return None
        if any(self.is_per_channel(each, rank, shape[1]) is None for each in constants):
            return None
        return _Segment(product, tuple(sorted(others)), frozenset(tensors), shape[0], shape[1])

    def _is_added(self, tensor: str) -> bool:
        """Whether the tensor, after elementwise nodes, is added to another tensor."""
        while len(readers := self._readers.get(tensor, [])) == 1 and tensor not in self._outside:
            node = self.nodes[readers[0]]
            others = [each for each in node.input if each and each != tensor and each not in self._constants]
            if others:
                return node.op_type == "Add" and node.domain in ONNX_DOMAINS
            if node.op_type not in ELEMENTWISE:
                return False
            tensor = node.output[0]
        return False

    def _shape(self, name: str) -> Shape | None:
        known = self._tensors.get(name)
        return None if known is None else known.shape


def _order(node: NodeProto) -> tuple[int, ...]:
    """The axis order of a Transpose with a perm attribute; empty for other nodes."""
    if node.op_type != "Transpose" or node.domain not in ONNX_DOMAINS:
        return ()
    return next((tuple(each.ints) for each in node.attribute if each.name == "perm"), ())


def _rewrite(graph: GraphProto, view: _View, sequence: _Sequence) -> None:
    """Replaces a sequence's products by convolutions, and moves its Transpose before them unless it cancels another."""
    from onnx import helper, numpy_helper

    names = {name for node in graph.node for name in (*node.input, *node.output)}
    names |= {tensor.name for tensor in graph.initializer}
    before: dict[int, list[NodeProto]] = {}

    def fresh(name: str) -> str:
        found = f"{name}/channels_first"
        while found in names:
            found += "_"
        names.add(found)
        return found

    def add(position: int, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        made = helper.make_node(operator, inputs, [fresh(name)], **attributes)
        before.setdefault(position, []).append(made)
        return str(made.output[0])

    def reshaped(position: int, name: str, *sizes: int) -> str:
        shape = numpy_helper.from_array(np.array(sizes, np.int64), fresh(f"{name}/shape"))
        graph.initializer.append(shape)
        return add(position, "Reshape", [name, shape.name], name)

    rank = sequence.rank
    ones = [1] * (rank - 2)
    first = sequence.segments[-1].product
    source = sequence.undone or add(
        first, "Transpose", [sequence.source], sequence.source, perm=[0, rank - 1, *range(1, rank - 1)]
    )
    for segment in sequence.segments:
        for position in segment.others:
            node = graph.node[position]
            for i, name in enumerate(node.input):
                if name and name not in segment.tensors and view.is_per_channel(name, rank, segment.outputs):
                    node.input[i] = reshaped(position, name, -1, *ones)
        node = graph.node[segment.product]
        turned = add(segment.product, "Transpose", [node.input[1]], node.input[1], perm=[1, 0])
        node.op_type, node.input[1] = "Conv", reshaped(segment.product, turned, 0, 0, *ones)
    graph.node[first].input[0] = source
    transpose = graph.node[sequence.transpose]
    last = graph.node[view.producers[transpose.input[0]]]
    last.output[0] = transpose.output[0]
    nodes = list(graph.node)
    del graph.node[:]
    for i, node in enumerate(nodes):
        graph.node.extend(before.get(i, ()))
        if i != sequence.transpose:
            graph.node.append(node)
    stale = frozenset[str]().union(*(segment.tensors for segment in sequence.segments))
    declared = [value for value in graph.value_info if value.name not in stale]
    del graph.value_info[:]
    graph.value_info.extend(declared)
