"""Values of a network that depend on shapes alone: they stay on the CPU, so that no call waits for the GPU."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from codegen.frontend.onnx.export.network import Network, NetworkNode

MOST_NUMBERS = 64
"""Largest constant that is read on the CPU: shapes, axes and the like."""
OF_SHAPES = frozenset({"Shape", "Size"})
"""Operators that read a tensor's shape, not its elements."""
MAKERS = frozenset({"ConstantOfShape", "Range", *OF_SHAPES})
"""Operators whose result lies on no input's device."""
# fmt: off
_COMPUTED = frozenset(
    {
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Floor",
    "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not",
    "Or", "Pow", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "Slice", "Split",
    "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where",
    }
)
# fmt: on
"""Operators that exporters compute shapes with."""


def host_values(network: Network) -> frozenset[str]:
    """Names of the tensors that follow from shapes and constants."""
    found: set[str] = set()
    for node in network.nodes:
        if _follows_from_shapes(node, network, found):
            found.update(filter(None, node.outputs))
    return frozenset(found)


def is_short(constant: NDArray[Any] | None) -> bool:
    """Whether an operator reads the constant on the CPU; False without one."""
    return constant is not None and constant.size <= MOST_NUMBERS


def _follows_from_shapes(node: NetworkNode, network: Network, found: set[str]) -> bool:
    if node.layer or node.operator in OF_SHAPES:
        return not node.layer
    if node.operator not in _COMPUTED:
        return False
    inputs = set(filter(None, node.inputs))
    of_shapes = inputs & found
    rest = (network.constants.get(name) for name in inputs - found)
    return bool(of_shapes or node.operator in MAKERS) and all(map(is_short, rest))
