"""View nodes: nodes that only change a tensor's shape or order of axes, and the channel axis after them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from codegen.errors import CheckpointError
from codegen.frontend.onnx.graph.dimensions import Size
from codegen.frontend.onnx.graph.graph import Graph
from codegen.frontend.onnx.graph.nodes import Node

_RESHAPING = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Axes:
    """Rank and channel axis of a tensor; None if unknown."""

    rank: int | None
    channel: int | None
    """Axis of the K output channels, counted from the end if negative; None without such an axis."""


def is_copy(node: Node, graph: Graph, tensor: str) -> bool:
    """Whether a node copies the tensor: Identity, or Dropout outside training. May raise UnsupportedError."""
    if node.input(0) != tensor:
        return False
    if node.operator == "Dropout" and node.input(2):
        return node.input(2) in graph.constants and not graph.constants.read(node.input(2)).any()
    return node.operator in ("Identity", "Dropout")


def is_reshape(node: Node, graph: Graph, tensor: str) -> bool:
    """Whether a node only changes the tensor's shape; true for a Transpose that moves axes of one element only."""
    if node.input(0) != tensor:
        return False
    if node.operator != "Transpose":
        return node.operator in _RESHAPING
    size = graph.size(tensor)
    if size is None:
        return False
    moved = [axis for axis in _order(node, len(size)) if size[axis] != 1]
    return moved == sorted(moved)


def is_transpose(node: Node, graph: Graph, tensor: str) -> bool:
    """Whether a node is a Transpose of the tensor, whose rank is known."""
    return node.operator == "Transpose" and node.input(0) == tensor and graph.size(tensor) is not None


def axes_transposed(axes: Axes, node: Node) -> Axes:
    """The axes after a Transpose."""
    if axes.rank is None or axes.channel is None:
        return axes
    return Axes(axes.rank, _order(node, axes.rank).index(axes.channel % axes.rank))


def _order(node: Node, rank: int) -> tuple[int, ...]:
    """The axes of a Transpose's input in the order of its output. Raises CheckpointError if they are not its axes."""
    order = node.integers.get("perm", tuple(reversed(range(rank))))
    if sorted(order) != list(range(rank)):
        raise CheckpointError(f"{node} has the perm {list(order)} for {rank} axes: export the model again")
    return order


def axes_after(axes: Axes, before: Size | None, after: Size | None, channels: int) -> Axes:
    """The axes after a reshape; the channel axis must keep its size and the number of elements after it."""
    if after is None:
        return Axes(None, None)
    unknown = Axes(len(after), None)
    if before is None or axes.channel is None:
        return unknown
    inner = before[axes.channel % len(before) + 1 :]
    # With one channel, several axes of one element may fit; any of them is right.
    for axis, size in enumerate(after):
        behind = after[axis + 1 :]
        if size == channels and None not in (*inner, *behind) and _elements(behind) == _elements(inner):
            return Axes(len(after), axis)
    return unknown


def _elements(size: Size) -> int:
    return prod(each or 0 for each in size)
