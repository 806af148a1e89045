"""Shape inference of a whole graph by onnx's native code, whose time and memory a small file can make endless."""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING

from codegen.errors import CheckpointError, ToolCrashed, ToolError, ToolOutOfMemory, ToolTimeout
from codegen.frontend.onnx.graph import inference_program
from codegen.frontend.onnx.graph.constants import LARGEST_RANK
from codegen.frontend.onnx.graph.functions import sub_graphs
from codegen.frontend.onnx.graph.nodes import ONNX_DOMAINS, text
from codegen.toolchain.temp_folders import TempFolder
from codegen.toolchain.tools import ToolLimits, run_tool

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

LIMITS = ToolLimits(seconds=20, memory_bytes=2**31, file_bytes=2**31)
"""Limits of the inference of one graph; 200,000 nodes take 4 s."""
LEAST_BYTES_ALLOWED = 2**26
BYTES_ALLOWED_PER_BYTE = 4
"""Size limit of the result per byte of the graph."""

MOST_PLAIN_NODES = 2000
"""Most nodes of a graph that is inferred in this process."""
_PLAIN = frozenset(
    {
        *("Conv", "ConvInteger", "ConvTranspose", "Gemm", "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul"),
        *("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "Resize", "Upsample"),
        *("BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN"),
        *("Abs", "Cast", "Ceil", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity"),
        *("LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg", "PRelu", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softmax"),
        *("Softplus", "Softsign", "Sqrt", "Tanh", "Dropout", "DequantizeLinear", "QuantizeLinear"),
        *("Add", "Div", "Max", "Mean", "Min", "Mul", "Pow", "Sub", "Sum"),
        *("Concat", "Constant", "Flatten", "ReduceMax", "ReduceMean", "ReduceSum", "Reshape", "Squeeze"),
        "Transpose",
    }
)
"""Operators whose outputs have no more dimensions than an input, two or a short shape, and no more known values."""


def inferred_graph(model: ModelProto) -> GraphProto:
    """The graph with the types and shapes that onnx infers, with symbols for open dimensions.

    Most convolutional networks are inferred here; a graph in which shapes may grow, in a process of its own. Raises
    CheckpointError if inference fails or exceeds its limits, and for tensors of more than LARGEST_RANK dimensions.
    """
    import onnx

    _check_ranks(model.graph)
    try:
        data = model.SerializeToString()
        if _is_plain(model.graph):
            graph = onnx.shape_inference.infer_shapes(data, data_prop=True).graph
        else:
            graph = onnx.load_model_from_string(_inferred_apart(data)).graph
    except (onnx.shape_inference.InferenceError, ValueError) as error:  # ValueError: an unknown type, a bad name
        raise _failure(str(error)) from error
    _check_ranks(graph)
    return graph


def _is_plain(graph: GraphProto) -> bool:
    """Whether no shape or known value can grow from node to node."""
    values = (*graph.input, *graph.value_info)
    short = frozenset(tensor.name for tensor in graph.initializer if prod(tensor.dims) <= LARGEST_RANK)
    return (
        len(graph.node) <= MOST_PLAIN_NODES
        and all(value.type.WhichOneof("value") in (None, "tensor_type") for value in values)
        and all(_is_plain_node(node, short) for node in graph.node)
    )


def _is_plain_node(node: NodeProto, short: frozenset[str]) -> bool:
    """`short` are the stored constants with no more elements than a shape has."""
    if node.op_type not in _PLAIN or node.domain not in ONNX_DOMAINS or next(sub_graphs(node), None) is not None:
        return False
    if node.op_type == "Concat":  # along the first axis it joins values that are shapes
        return any(each.name == "axis" and each.i > 0 for each in node.attribute)
    if node.op_type == "Reshape":
        return short.issuperset(node.input[1:])
    constants = node.attribute if node.op_type == "Constant" else ()
    return all(each.HasField("t") and len(each.t.dims) <= LARGEST_RANK for each in constants)


def _inferred_apart(model: bytes) -> bytes:
    """The result of a process that runs inference_program. Raises CheckpointError if it fails or exceeds LIMITS."""
    from onnx import onnx_cpp2py_export

    largest = LEAST_BYTES_ALLOWED + BYTES_ALLOWED_PER_BYTE * len(model)
    with TempFolder("shapes") as folder:
        source, result = folder / "model.onnx", folder / "inferred.onnx"
        source.write_bytes(model)
        program = [sys.executable, "-I", "-S", inference_program.__file__, onnx_cpp2py_export.__file__]
        try:
            run_tool([*program, str(source), str(result), str(largest)], limits=LIMITS, temp_folder=folder)
        except (ToolCrashed, ToolOutOfMemory, ToolTimeout) as error:
            raise CheckpointError(
                f"its shapes take more than {LIMITS.seconds:g} s or {LIMITS.memory_bytes / 2**30:g} GB to infer: a "
                "number in it that is used as a size may be damaged; export the model again"
            ) from error
        except ToolError as error:
            raise _failure(error.stderr) from error
        return result.read_bytes()


def _failure(reason: str) -> CheckpointError:
    return CheckpointError(f"shape inference fails ({reason}): check the model with onnx.checker")


def _check_ranks(graph: GraphProto) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        check_rank(text(value.name), len(value.type.tensor_type.shape.dim))
    for tensor in graph.initializer:
        check_rank(text(tensor.name), len(tensor.dims))


def check_rank(name: str, rank: int) -> None:
    """Raises CheckpointError for a tensor of more than LARGEST_RANK dimensions."""
    if rank > LARGEST_RANK:
        raise CheckpointError(
            f"the tensor '{name}' has {rank} dimensions, not {LARGEST_RANK} or fewer: export it again"
        )
