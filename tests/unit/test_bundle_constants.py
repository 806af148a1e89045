"""A bundle holds a weight of a layer that is left to others once: the network points into the runtime's constants."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from codegen.frontend.onnx.export.network import Network
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.model_zoo import lenet5, write_network
from farm.bundle.contents import contents_of
from farm.bundle.reader import Bundle
from farm.errors import UsageError
from tests.bundle_samples import contents, validator
from tests.torch.bundles import whole_bundle
from tests.unit.onnx_models import constants, info, model, node, save, values

TOO_LARGE_BYTES = 500_000
"""Limit of code, which only LeNet-5's fc1 exceeds."""


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """LeNet-5 without max pools."""
    proto = lenet5(0.9, 0)
    for each in proto.graph.node:
        if each.op_type == "MaxPool":
            each.op_type = "AveragePool"
    write_network(tmp_path / "net.onnx", proto)
    return tmp_path / "net.onnx"


def bundled(network: Path, name: str = "bundle", code_limit_bytes: int = TOO_LARGE_BYTES) -> Path:
    checkpoint = read_checkpoint(network)
    return whole_bundle(network.parent / name, checkpoint, batch=64, code_limit_bytes=code_limit_bytes)


def weights_of(network: Path) -> np.ndarray:
    [weights] = [each for each in onnx.load(network).graph.initializer if each.name == "fc1.weight"]
    return numpy_helper.to_array(weights)


def test_weights_that_are_left_lie_in_one_file_only(network: Path) -> None:
    files = contents(bundled(network))
    data = weights_of(network).tobytes()
    assert [name for name, held in files.items() if data in held] == ["network.constants"]
    assert len(files["network.onnx"]) < 10_000


@pytest.mark.parametrize("name", ["folder", "one.farm"])
def test_the_network_is_read_with_all_its_weights(network: Path, name: str) -> None:
    found = Bundle(bundled(network, name)).network
    np.testing.assert_array_equal(found.constants["fc1.weight"], weights_of(network))


def test_what_is_in_a_bundle_counts_the_weights_that_are_left(network: Path) -> None:
    assert contents_of(Bundle(bundled(network))).constants_bytes == weights_of(network).nbytes + 500 * 4


def test_a_pool_in_a_layer_is_in_the_manifest(tmp_path: Path) -> None:
    write_network(tmp_path / "net.onnx", lenet5(0.9, 0))
    manifest = json.loads((bundled(tmp_path / "net.onnx") / "manifest.json").read_text())
    validator().validate(manifest)
    assert manifest["layers"][0]["spec"]["epilogue"] == [{"step": "max_pool"}]
    assert manifest["layers"][0]["tensors"]["output"]["shape"] == ["batch", 20, 12, 12]


def test_the_same_job_gives_the_same_bytes(network: Path) -> None:
    first, second = (bundled(network, name) for name in ("a.farm", "b.farm"))
    assert first.read_bytes() == second.read_bytes()


def test_onnx_reads_the_network_of_an_unpacked_bundle(network: Path, tmp_path: Path) -> None:
    with ZipFile(bundled(network, "one.farm")) as archive:
        archive.extractall(tmp_path / "unpacked")
    path = tmp_path / "unpacked" / "network.onnx"
    onnx.checker.check_model(str(path))
    [weights] = [each for each in onnx.load(path).graph.initializer if each.name == "fc1.weight"]
    np.testing.assert_array_equal(numpy_helper.to_array(weights), weights_of(network))


def test_onnxruntime_runs_what_is_left_beside_the_layers(network: Path) -> None:
    """onnxruntime has no operator for compiled layers: without them the rest is a model of its own."""
    folder = bundled(network)
    proto = onnx.load(folder / "network.onnx", load_external_data=False)
    [gemm] = [each for each in proto.graph.node if each.op_type == "Gemm"]
    del proto.graph.node[:], proto.graph.input[:], proto.graph.output[:], proto.graph.value_info[:]
    proto.graph.node.append(gemm)
    proto.graph.input.append(info(gemm.input[0], ("N", 800)))
    proto.graph.output.append(info(gemm.output[0], ("N", 500)))
    onnx.save(proto, folder / "rest.onnx")
    x = values(3, 800)
    [found] = onnxruntime.InferenceSession(str(folder / "rest.onnx")).run(None, {gemm.input[0]: x})
    [bias] = [each for each in onnx.load(network).graph.initializer if each.name == "fc1.bias"]
    wanted = x @ weights_of(network).T + numpy_helper.to_array(bias)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_network_that_the_runtime_does_not_run_keeps_its_weights(tmp_path: Path) -> None:
    """Nothing else has them."""
    nodes = [node("MatMul", "x w", "a"), node("Erf", "a", "b"), node("Conv", "i k", "y", "conv")]
    left = constants(w=values(256, 300), k=values(4, 3, 1, 1))
    proto = model(nodes, left, inputs=[info("x", ("N", 256)), info("i", ("N", 3, 4, 4))], output="y")
    proto.graph.output.append(info("b", ("N", 300)))
    path = save(tmp_path, proto)
    folder = whole_bundle(tmp_path / "bundle", read_checkpoint(path), code_limit_bytes=20_000)
    found = Bundle(folder)
    assert "network.constants" not in contents(folder)
    np.testing.assert_array_equal(found.network.constants["w"], values(256, 300))


def read(folder: Path) -> Network:
    return Bundle(folder).network


@pytest.mark.parametrize("change", ["missing", "damaged"])
def test_constants_that_are_not_whole_are_told_when_the_network_is_read(network: Path, change: str) -> None:
    folder = bundled(network)
    held = folder / "network.constants"
    if change == "missing":
        held.unlink()
    else:
        data = bytearray(held.read_bytes())
        data[-1] ^= 1
        held.write_bytes(data)
    with pytest.raises(UsageError, match=rf"network\.constants is {change}"):
        read(folder)
    [found] = Bundle(folder).damage()
    assert f"network.constants is {change}" in found
