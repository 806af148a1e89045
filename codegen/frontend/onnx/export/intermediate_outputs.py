"""Intermediate outputs: inner tensors as further outputs of a model, to compare compiled layers with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from codegen.errors import CheckpointError
from codegen.frontend.onnx.graph.library_errors import serialized


def with_intermediate_outputs(path: Path | str, names: Collection[str]) -> tuple[bytes, Mapping[str, str]]:
    """The model with the named tensors as outputs, and for each that is in the graph its operator, in graph order.

    Raises CheckpointError if the file cannot be read or the model exceeds protobuf's limit of 2 GB.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model(str(path), format="protobuf")  # for any file suffix
    # External data raise the last two.
    except (OSError, DecodeError, ValueError, onnx.checker.ValidationError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): give an ONNX file") from error
    graph = model.graph
    given = {output.name for output in graph.output}
    computed = {name: node.op_type for node in graph.node for name in node.output if name in names}
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed if name not in given)
    return serialized(model, f"{path} with its weights"), computed
