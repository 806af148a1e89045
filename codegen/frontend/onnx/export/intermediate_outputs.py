"""A model that gives tensors within it beside its outputs: for comparing them with what compiled layers compute."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from codegen.errors import CheckpointError
from codegen.frontend.onnx.graph.library_errors import serialized


def observed_model(path: Path | str, names: Collection[str]) -> tuple[bytes, tuple[str, ...]]:
    """The model, and those of the named tensors that it gives now, in the graph's order; names that it has not are
    left out. Raises CheckpointError for a file that cannot be read or is larger than the 2 GB that protobuf writes."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model(str(path), format="protobuf")  # whatever the file is called
    # The last two are of weights beside the model.
    except (OSError, DecodeError, ValueError, onnx.checker.ValidationError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): give an ONNX file") from error
    graph = model.graph
    given = {output.name for output in graph.output}
    computed = [name for node in graph.node for name in node.output if name in names]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed if name not in given)
    return serialized(model, f"{path} with its weights"), tuple(computed)
