"""The main graph of a model: who reads a tensor, and what is known of it before the model runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.onnx.extract.diagnostics import compiled_type
from codegen.frontend.onnx.graph.dimensions import Images, PerImage, Shape, Size
from codegen.frontend.onnx.graph.nodes import Node


class ConstantTensors(Protocol):
    """What can be computed before the model runs, by the tensors' names."""

    def __contains__(self, name: object) -> bool: ...

    def read(self, name: str) -> NDArray[Any]:
        """The values. Raises UnsupportedError or CheckpointError if there are none to be had."""


@dataclass(frozen=True)
class Graph:
    """The nodes of the main graph, in graph order, and the tensors between them."""

    nodes: Sequence[Node]
    read_elsewhere: frozenset[str]
    """The graph's outputs, and what sub-graphs read."""
    constants: ConstantTensors
    element_types: Mapping[str, str]
    """NumPy's names of them."""
    shapes: Mapping[str, Shape | None]
    images: Images

    @cached_property
    def _readers(self) -> dict[str, list[Node]]:
        """A node that reads a tensor twice is listed twice."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in filter(None, node.inputs):
                readers.setdefault(name, []).append(node)
        return readers

    @cached_property
    def depths(self) -> list[int]:
        """For each node, the length of the longest path to it from the inputs, itself included."""
        of_tensor: dict[str, int] = {}
        depths = []
        for node in self.nodes:
            depth = 1 + max((of_tensor.get(name, 0) for name in node.inputs if name not in self.constants), default=0)
            of_tensor.update(dict.fromkeys(node.outputs, depth))
            depths.append(depth)
        return depths

    @cached_property
    def _sources(self) -> tuple[list[str], dict[str, int]]:
        """What no node computes; and for each tensor the bits of those that it depends on."""
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
    def _makers(self) -> dict[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs if name}

    def maker(self, tensor: str) -> Node | None:
        """The node that computes a tensor; None of inputs of the graph."""
        return self._makers.get(tensor)

    def inputs_of(self, tensor: str) -> list[str]:
        """The inputs of the graph that a tensor depends on, in the order in which they are read."""
        sources, of_tensor = self._sources
        bits = of_tensor.get(tensor, 0)
        return [source for i, source in enumerate(sources) if bits >> i & 1]

    def is_read(self, tensor: str) -> bool:
        """Whether anything reads the tensor; what has no name is not read."""
        return tensor in self._readers or tensor in self.read_elsewhere

    def only_reader(self, tensor: str) -> Node | None:
        """The node that reads the tensor, if it reads it once and nothing else does."""
        readers = self._readers.get(tensor, [])
        return readers[0] if len(readers) == 1 and tensor not in self.read_elsewhere else None

    def readers(self, tensor: str) -> Sequence[Node] | None:
        """The nodes that read the tensor, in graph order; None if anything else reads it too."""
        return None if tensor in self.read_elsewhere else self._readers.get(tensor, [])

    def numbers(self, constant: str) -> NDArray[np.float64]:
        """A constant's values. Raises UnsupportedError unless it has a type that is compiled."""
        values = self.constants.read(constant)
        compiled_type(values.dtype.name, "constants are")
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return values.astype(np.float64)

    def size(self, tensor: str) -> Size | None:
        """Dimensions as numbers; None if not even how many there are is known."""
        shape = self.shapes.get(tensor)
        return None if shape is None else tuple(each if isinstance(each, int) else None for each in shape)

    def rows(self, tensor: str, axes: slice) -> int | None:
        """Rows per image of a tensor whose rows lie along these axes; None if that is not known."""
        shape = self.shapes.get(tensor)
        return None if shape is None else self.images.rows(shape[axes])

    def same_shape(self, first: str, second: str, reshaped: str = "") -> bool:
        """Whether it is known that two tensors always have one shape; `reshaped` has as many elements as the first."""
        shape, other, source = (self.shapes.get(name) for name in (first, second, reshaped))
        if shape is None or other is None or None in other or len(shape) != len(other):
            return False
        unequal = sum(a != b for a, b in zip(shape, other, strict=True))
        if unequal != 1:
            return not unequal
        # One size is unknown, or has another name: the others are equal, so it is too if there are as many elements.
        return source is not None and None not in source and _elements(source) == _elements(other)


def _elements(shape: Shape) -> tuple[int, list[str]]:
    """How many: a number times names."""
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
