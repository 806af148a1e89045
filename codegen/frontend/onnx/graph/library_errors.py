"""What onnx and protobuf raise about a model, neither of which has a class for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codegen.errors import CheckpointError

if TYPE_CHECKING:
    from onnx import ModelProto


def model_errors() -> tuple[type[Exception], ...]:
    """What onnx's C++ raises about a model that it cannot make sense of."""
    from onnx.checker import ValidationError
    from onnx.defs import SchemaError
    from onnx.shape_inference import InferenceError

    # The last three are what the bindings make of C++'s own exceptions.
    return SchemaError, ValidationError, InferenceError, IndexError, RuntimeError, ValueError


def written(model: ModelProto, what: str) -> bytes:
    """The model as a file's bytes. Raises CheckpointError, of `what`, where it is larger than the 2 GB that protobuf
    writes."""
    from google.protobuf.message import EncodeError

    try:
        return bytes(model.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as error:  # whichever, by its version
        raise CheckpointError(f"{what} is too large for one file, of which protobuf writes 2 GB ({error})") from error
