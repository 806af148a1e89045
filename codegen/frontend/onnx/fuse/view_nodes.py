"""Nodes that leave a tensor's elements as they lie in memory, in the same shape or in another one."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from codegen.frontend.onnx.graph.dimensions import Size
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import Node

_RESHAPING = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Axes:
    """Of a tensor with K kernels in it."""

    rank: int | None
    channel: int | None
    """The axis of the K kernels, counted from the end if negative; None if there is no such axis."""


def passes(node: Node, graph: Graph, tensor: str) -> bool:
    """Identity, and Dropout, which does nothing but in training. Raises UnsupportedError for a constant."""
    if node.input(0) != tensor:
        return False
    if node.operator == "Dropout" and node.input(2):
        return node.input(2) in graph.constants and not graph.constants.read(node.input(2)).any()
    return node.operator in ("Identity", "Dropout")


def reshapes(node: Node, graph: Graph, tensor: str) -> bool:
    """Another shape and nothing else: a Transpose too, if only axes of one element move."""
    if node.input(0) != tensor:
        return False
    if node.operator != "Transpose":
        return node.operator in _RESHAPING
    size = graph.size(tensor)
    if size is None:
        return False
    order = node.integers.get("perm", tuple(reversed(range(len(size)))))
    moved = [axis for axis in order if size[axis] != 1]
    return moved == sorted(moved)


def transposes(node: Node, graph: Graph, tensor: str) -> bool:
    """The same elements in another order of axes, which is known."""
    return node.operator == "Transpose" and node.input(0) == tensor and graph.size(tensor) is not None


def axes_transposed(axes: Axes, node: Node) -> Axes:
    """Where the kernels are after a Transpose."""
    if axes.rank is None or axes.channel is None:
        return axes
    order = node.integers.get("perm", tuple(reversed(range(axes.rank))))
    return Axes(axes.rank, order.index(axes.channel % axes.rank))


def axes_after(axes: Axes, before: Size | None, after: Size | None, kernels: int) -> Axes:
    """Where the kernels are after a reshape: behind as many elements as before it, if that is known."""
    if after is None:
        return Axes(None, None)
    unknown = Axes(len(after), None)
    if before is None or axes.channel is None:
        return unknown
    inner = before[axes.channel % len(before) + 1 :]
    # If several axes have one element they are all the same.
    for axis, size in enumerate(after):
        behind = after[axis + 1 :]
        if size == kernels and None not in (*inner, *behind) and _elements(behind) == _elements(inner):
            return Axes(len(after), axis)
    return unknown


def _elements(size: Size) -> int:
    return prod(each or 0 for each in size)
