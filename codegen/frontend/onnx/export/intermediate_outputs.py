"""Intermediate outputs: inner tensors as further outputs of a model, to compare compiled layers with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from codegen.errors import CheckpointError
from codegen.frontend.onnx.graph.library_errors import serialized
from codegen.frontend.onnx.graph.quantized_operators import ON_INTEGERS

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

SATURATING = frozenset({"Sigmoid", "HardSigmoid", "Softmax", "Tanh"})
"""Operators with results of at most 1, computed through numbers near 1: their rounding is absolute."""
SELECTING = frozenset(
    {
        *("AveragePool", "Concat", "Expand", "Flatten", "Gather", "GlobalAveragePool", "GlobalMaxPool"),
        *("Identity", "MaxPool", "Pad", "ReduceMax", "ReduceMean", "ReduceMin", "Relu", "Reshape", "Resize"),
        *("Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Upsample"),
    }
)
"""Operators whose results are elements or means of their inputs, and so have at most the inputs' largest error."""


@dataclass(frozen=True, eq=False)
class ObservedModel:
    """A model with further outputs."""

    data: bytes
    tensors: tuple[str, ...]
    """The wanted tensors that nodes of the main graph compute, in graph order."""
    operands: Mapping[str, str]
    """Outputs that equal the operands whose magnitude scales an absolute error, by the operands: those that are clipped
    or multiplied by the result of a saturating operator."""
    nodes: Sequence[NodeProto]

    @property
    def quantized(self) -> bool:
        """Whether activations are rounded to integers, by operators of their own or within one on integers."""
        rounding = {"DynamicQuantizeLinear", "QuantizeLinear"} | ON_INTEGERS
        return any(node.op_type in rounding for node in self.nodes)

    def roundings_of_one(self, largest: Mapping[str, float]) -> dict[str, float]:
        """Absolute errors of tensors, in roundings of 1, for the `largest` magnitudes of the operands."""
        return _roundings_of_one(self.nodes, largest.__getitem__)


def with_intermediate_outputs(
    path: Path | str, names: Collection[str], shapes: Mapping[str, Sequence[int]] | None = None
) -> ObservedModel:
    """The model with the named tensors, and the operands that scale their errors, as outputs.

    Inputs have the given `shapes` where the file fixes others, which --input-shape may replace. Raises CheckpointError
    if the file cannot be read or the model exceeds protobuf's limit of 2 GB.
    """
    import onnx

    model = _loaded(path)
    graph = model.graph
    _fix_shapes(graph, shapes or {})
    nodes = list(graph.node)
    given = {output.name for output in graph.output}
    computed = tuple(name for node in nodes for name in node.output if name in names)
    operands: dict[str, str] = {}

    def one_for_each(name: str) -> float:
        operands[name] = f"{name}/operand"
        return 1.0

    _roundings_of_one(nodes, one_for_each)
    graph.node.extend(onnx.helper.make_node("Identity", [name], [output]) for name, output in operands.items())
    further = (*(name for name in computed if name not in given), *operands.values())
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in further)
    return ObservedModel(serialized(model, f"{path} with its weights"), computed, operands, nodes)


def _fix_shapes(graph: GraphProto, shapes: Mapping[str, Sequence[int]]) -> None:
    """Replaces shapes of inputs that the file fixes otherwise, and drops those that follow from them."""
    others = [
        (each.type.tensor_type.shape.dim, shapes[each.name])
        for each in graph.input
        if each.name in shapes and _contradicts(each, shapes[each.name])
    ]
    for dimensions, shape in others:
        for dimension, size in zip(dimensions, shape, strict=True):
            dimension.dim_value = size
    if others:
        del graph.value_info[:]
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")


def _contradicts(declared: ValueInfoProto, shape: Sequence[int]) -> bool:
    sizes = [dimension.dim_value for dimension in declared.type.tensor_type.shape.dim]
    return len(sizes) == len(shape) and any(
        size > 0 and size != given for size, given in zip(sizes, shape, strict=True)
    )


def _loaded(path: Path | str) -> ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load_model(str(path), format="protobuf")  # for any file suffix
    # External data raise the last two.
    except (OSError, DecodeError, ValueError, onnx.checker.ValidationError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): give an ONNX file") from error


def _roundings_of_one(nodes: Sequence[NodeProto], largest: Callable[[str], float]) -> dict[str, float]:
    errors: dict[str, float] = {}
    for node in nodes:
        given = [errors.get(name, 0.0) for name in node.input]
        if node.op_type in SATURATING:
            error = 1.0
        elif node.op_type == "Clip":  # what is clipped may be far larger than the bounds, and so may its rounding
            error = max(given[0], largest(node.input[0]))
        elif node.op_type in SELECTING:
            error = max(given, default=0.0)
        elif node.op_type in ("Add", "Sub"):
            error = sum(given)
        elif node.op_type == "Mul" and any(given):
            pairs = zip(given, reversed(node.input), strict=True)
            error = sum(each * largest(other) for each, other in pairs if each)
        else:
            error = 0.0
        if error:
            errors |= dict.fromkeys(node.output, error)
    return errors
