"""A model that gives tensors within it beside its outputs: for comparing them with what compiled layers compute."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from codegen.errors import CheckpointError


def observed_model(path: Path | str, names: Collection[str]) -> tuple[bytes, tuple[str, ...]]:
    """The model, and those of the named tensors that it gives now, in the graph's order; names that it has not are
    left out. Raises CheckpointError for a file that cannot be read or is larger than the 2 GB that protobuf writes."""
    import onnx

    try:
        model = onnx.load_model(str(path))
    except Exception as error:  # whatever protobuf and the file system say
        raise CheckpointError(f"{path} cannot be read ({error}): give an ONNX file") from error
    graph = model.graph
    given = {output.name for output in graph.output}
    computed = [name for node in graph.node for name in node.output if name in names]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed if name not in given)
    try:
        return bytes(model.SerializeToString()), tuple(computed)
    except ValueError as error:  # EncodeError is one
        raise CheckpointError(f"{path} is too large to be compared as a whole ({error})") from error
