"""ONNX reader: errors of onnx and protobuf become a CheckpointError; defects of this program do not."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import onnx
import pytest
from google.protobuf.message import EncodeError
from onnx import external_data_helper

from codegen.errors import CheckpointError
from codegen.frontend.onnx.export.intermediate_outputs import with_intermediate_outputs
from codegen.frontend.onnx.graph.evaluation import inferred_types
from codegen.frontend.onnx.graph.library_errors import serialized
from tests.unit.onnx_models import conv, model, save, tensor, values


class TooLarge:
    """A stub that fails like a model above 2 GB, without its 4 GB of memory."""

    def SerializeToString(self, *, deterministic: bool) -> bytes:
        raise EncodeError("Failed to serialize proto")


def test_a_model_that_protobuf_cannot_write_is_an_error_that_says_so() -> None:
    with pytest.raises(CheckpointError, match="the model is too large for one file"):
        serialized(cast("onnx.ModelProto", TooLarge()), "the model")


def test_intermediate_outputs_of_a_file_with_any_suffix_are_read(tmp_path: Path) -> None:
    path = save(tmp_path, model([conv()], [tensor("w", values(2, 3, 3, 3))])).rename(tmp_path / "model.json")
    assert with_intermediate_outputs(path, ["y"]).tensors == ("y",)


@pytest.mark.parametrize("data", [b"not a model", b"\xff" * 64, None], ids=["text", "bytes", "no file"])
def test_a_file_that_cannot_be_observed_is_an_error_that_names_it(data: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "damaged.onnx"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"damaged\.onnx cannot be read"):
        with_intermediate_outputs(path, ["y"])


def test_missing_external_weights_of_intermediate_outputs_are_named(tmp_path: Path) -> None:
    kernel = tensor("w", values(64, 3, 3, 3))
    external_data_helper.set_external_data(kernel, "w.bin")
    kernel.ClearField("raw_data")
    kernel.data_location = onnx.TensorProto.EXTERNAL
    with pytest.raises(CheckpointError, match=r"w\.bin"):
        with_intermediate_outputs(save(tmp_path, model([conv()], [kernel])), ["y"])


def test_an_input_that_we_forgot_is_not_the_models_fault() -> None:
    with pytest.raises(KeyError):
        inferred_types(conv(), {}, {}, 17)
