"""ONNX reader: external data are read from the model's folder only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from codegen.errors import CheckpointError
from codegen.frontend.onnx.reader import read_checkpoint
from tests.unit.onnx_models import conv, info, model, save, tensor, values

WEIGHTS = values(4, 3, 3, 3)
DATA = WEIGHTS.tobytes()


def external(name: str, array: np.ndarray[Any, Any], **entries: str | int) -> onnx.TensorProto:
    proto = tensor(name, array)
    proto.ClearField("raw_data")
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        proto.external_data.add(key=key, value=str(value))
    return proto


def saved(folder: Path, **entries: str | int) -> Path:
    folder.mkdir(exist_ok=True)
    return save(folder, model([conv()], [external("w", WEIGHTS, **entries)]))


def error_of(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


def test_what_onnx_itself_writes_beside_the_model_is_read(tmp_path: Path) -> None:
    proto = model([conv()], [tensor("w", WEIGHTS)])
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert (tmp_path / "m.data").stat().st_size == len(DATA)
    np.testing.assert_array_equal(read_checkpoint(tmp_path / "m.onnx").layers[0].weights.kernel, WEIGHTS)


@pytest.mark.parametrize("entries", [{"offset": 16, "length": len(DATA)}, {"offset": 16}])
def test_offset_and_length_select_a_part_of_the_file(entries: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16) + DATA + bytes(16))
    path = saved(tmp_path, location="w.bin", **entries)
    np.testing.assert_array_equal(read_checkpoint(path).layers[0].weights.kernel, WEIGHTS)


def test_a_sub_folder_and_a_link_within_the_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "real.bin").write_bytes(DATA)
    (tmp_path / "weights" / "w.bin").symlink_to(tmp_path / "real.bin")
    assert read_checkpoint(saved(tmp_path, location="weights/w.bin")).layers


def test_a_model_reached_by_a_relative_path_finds_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.bin").write_bytes(DATA)
    saved(tmp_path, location="w.bin")
    monkeypatch.chdir(tmp_path)
    assert read_checkpoint("model.onnx").layers


def test_a_shape_that_is_kept_in_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "s.bin").write_bytes(np.array([-1, 3, 6, 4]).tobytes())
    nodes = [helper.make_node("Reshape", ["x", "s"], ["z"]), conv(inputs=("z", "w"))]
    tensors = [external("s", np.zeros(4, np.int64), location="s.bin"), tensor("w", WEIGHTS)]
    path = save(tmp_path, model(nodes, tensors, inputs=[info("x", ["N", 72])]))
    assert read_checkpoint(path).layers[0].spec.input_shape == (3, 6, 4)


def test_missing_data_is_an_error_that_names_it(tmp_path: Path) -> None:
    message = error_of(saved(tmp_path, location="w.bin"))
    assert "'w.bin' is missing" in message


def test_missing_data_of_a_layer_that_is_skipped_is_an_error_too(tmp_path: Path) -> None:
    nodes = [conv(), helper.make_node("Gemm", ["g", "c"], ["h"])]
    tensors = [tensor("w", WEIGHTS), external("c", values(2, 2), location="c.bin")]
    path = save(tmp_path, model(nodes, tensors, inputs=[info("x", ["N", 3, 8, 8]), info("g", ["N", 2])]))
    assert "'c.bin' is missing" in error_of(path)


@pytest.mark.parametrize("entries", [{}, {"length": len(DATA)}, {"offset": 4}, {"offset": 10**6}, {"length": 10**15}])
def test_data_shorter_than_said_is_an_error(entries: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(DATA[:-4])
    assert f"has {len(DATA) - 4} bytes" in error_of(saved(tmp_path, location="w.bin", **entries))


def test_a_length_that_does_not_fit_the_shape_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(DATA)
    assert "holds 8 bytes" in error_of(saved(tmp_path, location="w.bin", length=8))


@pytest.mark.parametrize("entries", [{"offset": -4}, {"length": -4}, {"offset": "two"}, {"length": ""}])
def test_offsets_and_lengths_that_are_no_counts_are_an_error(entries: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(DATA)
    assert "external data 'w.bin'" in error_of(saved(tmp_path, location="w.bin", **entries))


@pytest.mark.parametrize("way", ["absolute", "parent", "through a folder", "link", "linked folder"])
def test_data_outside_the_models_folder_is_refused(way: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "model"
    outside.mkdir()
    folder.mkdir()
    (outside / "w.bin").write_bytes(DATA)
    (folder / "sub").mkdir()
    (folder / "link.bin").symlink_to(outside / "w.bin")
    (folder / "linked").symlink_to(outside)
    location = {
        "absolute": str(outside / "w.bin"),
        "parent": "../outside/w.bin",
        "through a folder": "sub/../../outside/w.bin",
        "link": "link.bin",
        "linked folder": "linked/w.bin",
    }[way]
    assert "outside the model's folder" in error_of(saved(folder, location=location))


def test_a_path_outside_is_refused_whether_or_not_it_exists(tmp_path: Path) -> None:
    assert "outside the model's folder" in error_of(saved(tmp_path, location="/does/not/exist"))


@pytest.mark.parametrize("location", ["", ".", "folder", "ring", "w\0.bin"])
def test_a_location_that_is_no_file_is_an_error(location: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "ring").symlink_to("ring")
    assert "external data" in error_of(saved(tmp_path, location=location))
