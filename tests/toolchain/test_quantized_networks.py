"""Networks that onnxruntime quantized (QDQ), in the emulator: compiled in float32, with the same roundings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from cli.main import run
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import Quantize
from farm.api import Farm
from farm.jobs.model import BuildOptions, Status
from farm.verify import network
from farm.verify.onnxruntime_reference import ReferenceTensor, reference_tensors
from farm.verify.tensor_checks import check_tensor, is_quantized
from tests.unit.onnx_models import info, model, node, pruned, save, tensor, values


class _Inputs(CalibrationDataReader):
    def __init__(self) -> None:
        self._left = [values(2, 3, 12, 12, seed=i) for i in range(4)]

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        return {"x": self._left.pop()} if self._left else None


def quantized(folder: Path, activations: QuantType, layout: QuantFormat, *, per_channel: bool) -> Path:
    """A residual block, a pool and a classifier, whose weights are int8 afterwards."""
    nodes = [
        node("Conv", "x w1 b1", "a", "conv1", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("MaxPool", "b", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p w2 b2", "c", "conv2", pads=[1, 1, 1, 1]),
        node("Add", "c p", "d"),
        node("Relu", "d", "e"),
        node("GlobalAveragePool", "e", "f"),
        node("Flatten", "f", "g"),
        node("Gemm", "g w3 b3", "y", "fc", transB=1),
    ]
    weights = [
        tensor("w1", pruned(8, 3, 3, 3, seed=1)),
        tensor("b1", values(8, seed=2)),
        tensor("w2", pruned(8, 8, 3, 3, seed=3)),
        tensor("b2", values(8, seed=4)),
        tensor("w3", pruned(5, 8, seed=5)),
        tensor("b3", values(5, seed=6)),
    ]
    before = save(folder, model(nodes, weights, inputs=[info("x", ("N", 3, 12, 12))], output="y"), "before.onnx")
    path = folder / "model.onnx"
    quantize_static(
        before,
        path,
        _Inputs(),
        layout,
        per_channel=per_channel,
        activation_type=activations,
        weight_type=QuantType.QInt8,
    )
    return path


@pytest.mark.parametrize("layout", list(QuantFormat), ids=["operators", "qdq"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("activations", [QuantType.QUInt8, QuantType.QInt8])
def test_a_quantized_network_computes_what_onnxruntime_does(
    activations: QuantType,
    per_channel: bool,
    layout: QuantFormat,
    farm_of_commands: Farm,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = quantized(tmp_path, activations, layout, per_channel=per_channel)
    checkpoint = read_checkpoint(path)
    first, second, last = (layer.spec.epilogue for layer in checkpoint.layers)
    assert [type(step) for step in second].count(Quantize) == 2
    assert isinstance(last[0], Quantize)
    assert isinstance(first[0], Quantize)
    [job] = farm_of_commands.compile([checkpoint], BuildOptions(("sm_90",)))
    assert job.status is Status.SUCCEEDED, job.reason
    assert run(["verify", job.id, "--network"]) == 0
    assert "PASS" in capsys.readouterr().out
    assert run(["fetch", job.id, "-o", str(tmp_path / "net.farm"), "--ptx"]) == 0
    x = values(3, 3, 12, 12, seed=9)
    np.save(tmp_path / "x.npy", x)
    arguments = ["--input", str(tmp_path / "x.npy"), "-o", str(tmp_path / "y.npy"), "--emulate"]
    assert run(["run", str(tmp_path / "net.farm"), *arguments]) == 0
    [expected] = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})
    assert np.abs(np.load(tmp_path / "y.npy") - expected).max() <= last[0].scale * 1.001


def test_quantization_is_said_once_by_plan_and_compile(
    farm_of_commands: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = quantized(tmp_path, QuantType.QUInt8, QuantFormat.QDQ, per_channel=True)
    said = "3 of 3 layers are quantized to integers: compiled in float32 with dequantized weights"
    for command in (["plan"], ["compile", "-o", str(tmp_path / "net")]):
        assert run([command[0], str(path), "--arch", "sm_90", *command[1:]]) == 0
        assert capsys.readouterr().err.count(said) == 1


def test_integers_whose_scale_is_no_constant_are_refused_with_the_format_to_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = onnx.load(quantized(tmp_path, QuantType.QUInt8, QuantFormat.QOperator, per_channel=True))
    proto.graph.input.append(info("scale", ()))
    for each in proto.graph.node:
        if each.op_type in ("QLinearConv", "QGemm"):
            each.input[1] = "scale"
    onnx.save(proto, tmp_path / "open.onnx")
    assert run(["plan", str(tmp_path / "open.onnx"), "--arch", "sm_90"]) != 0
    assert "quantize the model in QDQ format" in capsys.readouterr().err


def test_a_quantized_network_that_is_not_what_the_model_says_is_found(
    farm_of_commands: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = quantized(tmp_path, QuantType.QUInt8, QuantFormat.QDQ, per_channel=True)
    [job] = farm_of_commands.compile([read_checkpoint(path)], BuildOptions(("sm_90",)))
    proto = onnx.load(path)
    next(each for each in proto.graph.node if each.op_type == "GlobalAveragePool").op_type = "GlobalMaxPool"
    onnx.save(proto, path)
    assert run(["verify", job.id, "--network"]) == 100
    assert "FAIL: the network differs from onnxruntime" in capsys.readouterr().out


def test_sampled_layers_that_quantize_may_be_a_step_off_behind_a_pool_too(
    farm_of_commands: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "MAX_EMULATED", 0)
    path = quantized(tmp_path, QuantType.QUInt8, QuantFormat.QDQ, per_channel=True)
    [job] = farm_of_commands.compile([read_checkpoint(path)], BuildOptions(("sm_90",)))
    assert run(["verify", job.id, "--network", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["sampled"]
    for each, spec in zip(document["tensors"], (layer.spec for layer in read_checkpoint(path).layers), strict=True):
        steps = [step.scale for step in spec.epilogue if isinstance(step, Quantize)]
        assert each["tolerance"] > steps[-1]


@pytest.mark.parametrize("layout", list(QuantFormat), ids=["operators", "qdq"])
def test_a_model_is_quantized_in_either_format(layout: QuantFormat, tmp_path: Path) -> None:
    path, given = quantized(tmp_path, QuantType.QUInt8, layout, per_channel=True), {"x": values(1, 3, 12, 12, seed=1)}
    assert is_quantized(reference_tensors(path, given, ["y"]))
    assert not is_quantized(reference_tensors(tmp_path / "before.onnx", given, ["y"]))


def test_a_value_may_be_a_step_off_in_a_quantized_network_only() -> None:
    wanted = ReferenceTensor(np.linspace(0, 1, 256, dtype=np.float32), quantized=True)
    off = wanted.values.copy()
    off[100] = off[101]
    assert is_quantized({"y": wanted})
    assert check_tensor("y", "", off, wanted, quantized=True).ok
    assert not check_tensor("y", "", off, wanted).ok
    off[100] = off[110]
    assert not check_tensor("y", "", off, wanted, quantized=True).ok


def test_a_value_may_be_a_step_off_however_few_steps_its_tensor_has() -> None:
    """Pruning makes activations smaller than the ranges that they were calibrated for."""
    wanted = ReferenceTensor(0.25 * np.arange(8, dtype=np.float32), quantized=True)
    off = wanted.values.copy()
    off[3] += 0.25
    assert check_tensor("y", "", off, wanted, quantized=True, step=0.25).ok
    off[3] += 0.25
    assert not check_tensor("y", "", off, wanted, quantized=True, step=0.25).ok
