"""The main graph of a model: producers and readers of each tensor, its type and shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.onnx.diagnostics import compiled_type
from codegen.frontend.onnx.graph.dimensions import Images, PerImage, Shape, Size
from codegen.frontend.onnx.graph.nodes import Node


class ConstantTensors(Protocol):
    """Constants of a graph by tensor name."""

    def __contains__(self, name: object) -> bool: ...

    def read(self, name: str) -> NDArray[Any]:
        """A constant's values. Raises UnsupportedError or CheckpointError if they cannot be computed or read."""


@dataclass(frozen=True)
class Graph:
    """The nodes of the main graph, in graph order, and the tensors between them."""

    nodes: Sequence[Node]
    read_elsewhere: frozenset[str]
    """Names of the graph's outputs and of the tensors that sub-graphs read."""
    constants: ConstantTensors
    element_types: Mapping[str, str]
    """NumPy's type names by tensor name, where known."""
    shapes: Mapping[str, Shape | None]
    images: Images

    @cached_property
    def _readers(self) -> dict[str, list[Node]]:
        """Readers of each tensor; a node that reads a tensor twice is listed twice."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in filter(None, node.inputs):
                readers.setdefault(name, []).append(node)
        return readers

    @cached_property
    def depths(self) -> list[int]:
        """Number of nodes on the longest path from the inputs to each node, itself included."""
        of_tensor: dict[str, int] = {}
        depths = []
        for node in self.nodes:
            depth = 1 + max((of_tensor.get(name, 0) for name in node.inputs if name not in self.constants), default=0)
            of_tensor.update(dict.fromkeys(node.outputs, depth))
            depths.append(depth)
        return depths

    @cached_property
    def _sources(self) -> tuple[list[str], dict[str, int]]:
        """The graph's inputs in reading order; and for each tensor a bit mask of the inputs that it depends on."""
        sources: list[str] = []
        of_tensor: dict[str, int] = {}
        for node in self.nodes:
            bits = 0
            for name in filter(None, node.inputs):
                if name not in of_tensor and name not in self.constants:
                    of_tensor[name] = 1 << len(sources)
                    sources.append(name)
                bits |= of_tensor.get(name, 0)
            of_tensor.update((name, bits | of_tensor.get(name, 0)) for name in node.outputs)
        return sources, of_tensor

    @cached_property
    def _producers(self) -> dict[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs if name}

    def producer(self, tensor: str) -> Node | None:
        """The node that computes a tensor; None for inputs of the graph."""
        return self._producers.get(tensor)

    def inputs_of(self, tensor: str) -> list[str]:
        """The graph inputs that a tensor depends on, in reading order."""
        sources, of_tensor = self._sources
        bits = of_tensor.get(tensor, 0)
        return [source for i, source in enumerate(sources) if bits >> i & 1]

    def is_read(self, tensor: str) -> bool:
        """Whether a node, a sub-graph or the graph's outputs read the tensor; false for an empty name."""
        return tensor in self._readers or tensor in self.read_elsewhere

    def only_reader(self, tensor: str) -> Node | None:
        """The tensor's single reader; None if it is read twice, elsewhere, or not at all."""
        readers = self._readers.get(tensor, [])
        return readers[0] if len(readers) == 1 and tensor not in self.read_elsewhere else None

    def readers(self, tensor: str) -> Sequence[Node] | None:
        """The nodes that read the tensor, in graph order; None if a sub-graph or the graph's outputs read it too."""
        return None if tensor in self.read_elsewhere else self._readers.get(tensor, [])

    def numbers(self, constant: str) -> NDArray[np.float64]:
        """A constant's values as float64. Raises UnsupportedError if its type is not compiled."""
        values = self.constants.read(constant)
        compiled_type(values.dtype.name, "constants are")
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return values.astype(np.float64)

    def size(self, tensor: str) -> Size | None:
        """The shape with None for every dimension that is not a number; None if its rank is unknown."""
        shape = self.shapes.get(tensor)
        return None if shape is None else tuple(each if isinstance(each, int) else None for each in shape)

    def rows(self, tensor: str, axes: slice) -> int | None:
        """Rows per image of a tensor whose rows lie along these axes; None if unknown."""
        shape = self.shapes.get(tensor)
        return None if shape is None else self.images.rows(shape[axes])

    def same_shape(self, first: str, second: str, reshaped: str = "") -> bool:
        """Whether two tensors are known to have equal shapes; `reshaped` has as many elements as the first."""
        shape, other, source = (self.shapes.get(name) for name in (first, second, reshaped))
        if shape is None or other is None or None in other or len(shape) != len(other):
            return False
        unequal = sum(a != b for a, b in zip(shape, other, strict=True))
        if unequal != 1:
            return not unequal
        # All dimensions but one are equal, so the last one is too if the numbers of elements are.
        return source is not None and None not in source and _elements(source) == _elements(other)


def _elements(shape: Shape) -> tuple[int, list[str]]:
    """Number of elements as a number times sorted symbols."""
    number, names = 1, []
    for dimension in shape:
        if isinstance(dimension, int):
            number *= dimension
        elif isinstance(dimension, PerImage) and not dimension.offset:
            number *= dimension.factor
            names.append(str(PerImage(1)))
        else:
            names.append(str(dimension))
    return number, sorted(names)
