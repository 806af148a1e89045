"""Networks with operators that the runtime lacks, which onnxruntime runs between the compiled layers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from cli.main import run
from codegen.frontend.onnx.reader import read_checkpoint
from farm.api import Farm
from farm.jobs.model import BuildOptions, Job, Status
from tests.unit.onnx_models import info, model, node, pruned, save, tensor, values
from tests.unit.test_conditionals import two_rates


def network_of_two_inputs(folder: Path) -> Path:
    """Two convolutions with a power and a resize between them, plus a row of a table; two outputs, one of indices."""
    nodes = [
        node("Conv", "x w1", "a", "conv1", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Pow", "b two", "c"),
        node("Resize", "c  scales", "d", mode="nearest"),
        node("Conv", "d w2", "e", "conv2"),
        node("GlobalAveragePool", "e", "f"),
        node("Flatten", "f", "g"),
        node("Gather", "table ids", "h"),
        node("ReduceSum", "h one", "i", keepdims=0),
        node("Add", "g i", "y"),
        node("ArgMax", "y", "z", axis=1, keepdims=0),
    ]
    constants = [
        tensor("w1", pruned(4, 4, 3, 3, seed=1)),
        tensor("w2", pruned(8, 4, 1, 1, seed=2)),
        tensor("two", np.float32(2)),
        tensor("scales", np.array([1, 1, 2, 2], np.float32)),
        tensor("table", values(10, 8, seed=3)),
        tensor("one", np.array([1])),
    ]
    inputs = [info("x", ("N", 4, 6, 6)), info("ids", ("N", 3), onnx.TensorProto.INT64)]
    proto = model(nodes, constants, inputs=inputs)
    proto.graph.output.append(info("z", None, onnx.TensorProto.INT64))
    return save(folder, proto)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return network_of_two_inputs(tmp_path)


@pytest.fixture
def job(farm_of_commands: Farm, path: Path) -> Job:
    [job] = farm_of_commands.compile([read_checkpoint(path)], BuildOptions(("sm_90",)))
    assert job.status is Status.SUCCEEDED, job.reason
    return job


def test_operators_that_the_runtime_lacks_run_in_onnxruntime(
    farm: Farm, job: Job, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fetch", job.id, "-o", str(tmp_path / "net.farm"), "--ptx"]) == 0
    given = {"x": values(3, 4, 6, 6, seed=5), "ids": np.array([[0, 1, 2], [3, 4, 5], [9, 9, 9]])}
    np.savez(tmp_path / "given.npz", **given)
    capsys.readouterr()
    arguments = ["--input", str(tmp_path / "given.npz"), "-o", str(tmp_path / "y.npz"), "--emulate"]
    assert run(["run", str(tmp_path / "net.farm"), *arguments]) == 0
    assert "y.npz: z int64 [3] from the emulator and onnxruntime\n" in capsys.readouterr().out
    y, z = onnxruntime.InferenceSession(str(path)).run(None, given)
    made = np.load(tmp_path / "y.npz")
    np.testing.assert_allclose(made["y"], y, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(made["z"], z)
    np.savez(tmp_path / "given.npz", x=given["x"], other=given["ids"])
    assert run(["run", str(tmp_path / "net.farm"), *arguments]) == 2
    assert "arrays named x, other: expected x, ids. Name" in capsys.readouterr().err


def test_what_the_runtime_lacks_is_said_before_the_bundle_is_fetched(
    farm_of_commands: Farm, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "the input ids has type int64: use farm run or farm.torch"
    fixed = ["--input-shape", "ids:1,3", "--input-shape", "x:1,4,6,6"]
    assert run(["plan", str(path), "--arch", "sm_90", *fixed]) == 0
    assert said in capsys.readouterr().err
    assert run(["compile", str(path), "--arch", "sm_90", "-o", str(tmp_path / "net")]) == 0
    assert said in capsys.readouterr().err
    assert run(["bundle", "show", str(tmp_path / "net")]) == 0
    assert f"runtime      {said}" in capsys.readouterr().out


def test_a_network_with_integers_is_verified_without_a_gpu(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", job.id, "--network", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["sampled"], document["images"]) == (True, True, 2)
    assert [(each["name"], each["layer"]) for each in document["tensors"]] == [("b", "conv1"), ("e", "conv2")]
    assert all(0 < each["bound_share"] <= 1 for each in document["tensors"])
    assert [each["name"] for each in document["outputs"]] == ["y", "z"]


def test_a_layer_that_is_not_what_the_model_says_is_found(
    job: Job, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = onnx.load(path)
    next(each for each in proto.graph.node if each.op_type == "Relu").op_type = "Abs"
    onnx.save(proto, path)
    assert run(["verify", job.id, "--network"]) == 100
    assert "the first tensor that differs is b, of the compiled layer conv1" in capsys.readouterr().out


def test_an_operator_that_is_not_what_the_model_says_is_found(
    job: Job, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = onnx.load(path)
    next(each for each in proto.graph.initializer if each.name == "table").CopyFrom(tensor("table", values(10, 8)))
    onnx.save(proto, path)
    assert run(["verify", job.id, "--network"]) == 100
    assert "the first tensor that differs is y, which no compiled layer computes" in capsys.readouterr().out


def test_a_network_with_a_fixed_input_is_verified(
    farm_of_commands: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = two_rates(tmp_path)
    assert run(["compile", str(path), "--arch", "sm_90", "--input-value", "rate=16000", "-q"]) == 0
    assert run(["verify", "--network", "--input-value", "rate=16000", "--batch", "1"]) == 0
    assert run(["verify", "--network", "--input-value", "rate=8000", "--batch", "1"]) == 100
    assert run(["verify", "--network", "--input-value", "speed=1", "--batch", "1"]) == 2
    assert "no input 'speed' to give the value 1" in capsys.readouterr().err
    assert run(["verify", "--network", "--batch", "1"]) == 2
    assert "fix its inputs with --input-value" in capsys.readouterr().err


@pytest.mark.parametrize("fixed", [["--input-value", "gain=2"], []], ids=["fixed", "open"])
def test_layers_of_a_network_with_a_scalar_input_are_compared(
    farm_of_commands: Farm, fixed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [node("Conv", "x w", "a", "conv"), node("Neg", "a", "b"), node("Mul", "b gain", "y")]
    inputs = [info("x", (1, 3, 8, 8)), info("gain", ())]
    path = save(tmp_path, model(nodes, [tensor("w", pruned(4, 3, 1, 1, seed=1))], inputs=inputs))
    assert run(["compile", str(path), "--arch", "sm_90", *fixed, "-q"]) == 0
    capsys.readouterr()
    assert run(["verify", "--network", *fixed, "--batch", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"a": "conv"}.items() <= {each["name"]: each["layer"] for each in document["tensors"]}.items()
