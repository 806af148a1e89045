"""A bundle holds the network around the compiled layers, in a folder or in one file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import onnx
import pytest

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.model_zoo import lenet5, write_network
from farm.bundle.writer import write_bundle
from farm.errors import BlobLostError, UsageError
from farm.store.memory import MemoryStore
from tests.bundle_samples import JOB, TOOLS, build, contents, result, stored_cubins, validator


def stored_network(tmp_path: Path) -> tuple[MemoryStore, str]:
    write_network(tmp_path / "net.onnx", lenet5(0.9, 0))
    checkpoint = read_checkpoint(tmp_path / "net.onnx")
    assert checkpoint.residual_graph is not None
    store = stored_cubins()
    return store, store.put(checkpoint.residual_graph.with_layers(checkpoint.layers))


def written(path: Path, store: MemoryStore, network: str | None) -> Path:
    results = [result(0, "sm_80"), result(0, "sm_90")]
    return write_bundle(path, replace(JOB, network=network), [build(0, "conv1")], results, TOOLS, store)


def test_the_network_lies_beside_the_layers_with_its_inputs_and_outputs(tmp_path: Path) -> None:
    store, digest = stored_network(tmp_path)
    manifest = json.loads(written(tmp_path / "out", store, digest).read_text())
    validator().validate(manifest)
    assert manifest["network"] == {
        "path": "network.onnx",
        "sha256": digest,
        "bytes": (tmp_path / "out" / "network.onnx").stat().st_size,
        "inputs": [{"name": "input", "dtype": "float32", "shape": ["N", 1, 28, 28]}],
        "outputs": [{"name": "output", "dtype": "float32", "shape": ["N", 10]}],
    }
    network = onnx.load(tmp_path / "out" / "network.onnx")
    layers = [node.attribute[0].s.decode() for node in network.graph.node if node.domain == "farm"]
    assert layers == ["conv1", "conv2", "fc1", "fc2"]


def test_a_bundle_of_a_job_that_kept_no_network_has_none(tmp_path: Path) -> None:
    manifest = json.loads(written(tmp_path / "out", stored_cubins(), None).read_text())
    validator().validate(manifest)
    assert "network" not in manifest
    assert not (tmp_path / "out" / "network.onnx").exists()


def test_a_network_that_the_store_has_lost_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BlobLostError, match="has lost the network around the layers: run farm compile again"):
        written(tmp_path / "out", stored_cubins(), "ab" * 32)


def test_a_bundle_is_replaced_with_its_network(tmp_path: Path) -> None:
    store, digest = stored_network(tmp_path)
    written(tmp_path / "out", store, digest)
    written(tmp_path / "out", store, None)
    assert not (tmp_path / "out" / "network.onnx").exists()


def test_one_file_holds_what_the_folder_does_and_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    store, digest = stored_network(tmp_path)
    written(tmp_path / "folder", store, digest)
    first, second = (written(tmp_path / f"{name}.farm", store, digest) for name in ("a", "b"))
    with ZipFile(first) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == contents(tmp_path / "folder")
    assert first.read_bytes() == second.read_bytes()


def test_an_archive_does_not_replace_a_folder(tmp_path: Path) -> None:
    (tmp_path / "net.farm").mkdir()
    with pytest.raises(UsageError, match=r"net\.farm is a folder: a bundle whose name ends in \.farm is one file"):
        written(tmp_path / "net.farm", stored_cubins(), None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.farm"]
