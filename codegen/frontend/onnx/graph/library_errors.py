"""Errors that onnx and protobuf raise about a model, neither of which has one class for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codegen.errors import CheckpointError

if TYPE_CHECKING:
    from onnx import ModelProto


def model_errors() -> tuple[type[Exception], ...]:
    """The exception types that onnx's C++ code raises for an invalid model."""
    from onnx.checker import ValidationError
    from onnx.defs import SchemaError
    from onnx.shape_inference import InferenceError

    # The bindings turn C++'s own exceptions into the last three.
    return SchemaError, ValidationError, InferenceError, IndexError, RuntimeError, ValueError


def serialized(model: ModelProto, what: str) -> bytes:
    """The model's bytes. Raises CheckpointError, naming it `what`, if they exceed protobuf's limit of 2 GB."""
    from google.protobuf.message import EncodeError

    try:
        return bytes(model.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as error:  # protobuf's versions differ
        raise CheckpointError(f"{what} is too large for one file: protobuf writes 2 GB at most ({error})") from error
