"""ONNX reader: BatchNormalization and Relu before a 1x1 convolution become input bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from codegen.errors import TilingError
from codegen.frontend.onnx.export.network import read_network
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint, Weights
from codegen.ir.layer_spec import Clip, Conv2d, is_bounded, plain
from codegen.sass.qualification import assembler_for
from codegen.selection.choose import choose_tiling
from codegen.verification.reference import layer_output
from tests.unit.onnx_models import constants, info, model, node, save, values

SCALES = np.array([0.5, -1.5, 0.0, 0.0, 2.0, 1e-30], np.float32)
SHIFTS = np.array([0.3, 0.2, 0.7, -0.7, -0.1, 0.5], np.float32)
MEAN, VARIANCE = np.full(6, 0.25, np.float32), np.full(6, 4, np.float32)
NORM = node("BatchNormalization", "x s t m v", "n", "norm", epsilon=0.0)
RELU = node("Relu", "n", "r", "relu")
CONV = node("Conv", "r w", "y", "conv")


def dense_net(*nodes: onnx.NodeProto, **arrays: Any) -> onnx.ModelProto:
    """A model of x and z [N, 6, 8, 8], normalised by SCALES, SHIFTS, a mean of 0.25 and a variance of 4."""
    tensors = {"w": values(5, 6, 1, 1), "s": SCALES, "t": SHIFTS, "m": MEAN, "v": VARIANCE}
    inputs = [info(name, ("N", 6, 8, 8)) for name in "xz"]
    return model(list(nodes), constants(**tensors, **arrays), inputs=inputs)


def read(folder: Path, proto: onnx.ModelProto) -> Checkpoint:
    return read_checkpoint(save(folder, proto))


def expected(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {each.name: x for each in session.get_inputs()}
    return np.asarray(session.run(None, given)[0])


def test_the_normalisation_is_in_the_layer_and_computes_what_the_model_does(tmp_path: Path) -> None:
    proto = dense_net(NORM, RELU, CONV, node("Exp", "y", "e"))
    proto.graph.output[0].name = "e"
    checkpoint = read(tmp_path, proto)
    [layer] = checkpoint.layers
    assert (layer.input, layer.output) == ("x", "y")
    assert layer.folded == ("BatchNormalization norm", "Relu relu")
    assert is_bounded(layer.spec)
    x = values(3, 6, 8, 8, seed=4)
    found = np.exp(layer_output(layer.spec, layer.weights, x))
    np.testing.assert_allclose(found, expected(proto, x), rtol=1e-5, atol=1e-5)
    assert checkpoint.residual_graph is not None
    network = read_network(checkpoint.residual_graph.with_layers(checkpoint.layers))
    assert [each.operator for each in network.nodes] == ["Layer", "Exp"]


def test_the_sign_of_a_scale_selects_the_side_of_its_bound(tmp_path: Path) -> None:
    w = values(5, 6, 1, 1, seed=2)
    w[:, 0] = 0
    proto = dense_net(NORM, RELU, CONV)
    for tensor in proto.graph.initializer:
        if tensor.name == "w":
            tensor.CopyFrom(onnx.numpy_helper.from_array(w, "w"))
    [layer] = read(tmp_path, proto).layers
    bounds = layer.weights.bounds
    assert bounds is not None
    assert np.isfinite(bounds).tolist() == [
        [True, False], [False, True], [False, False], [False, False], [True, False], [True, False]
    ]  # fmt: skip
    assert (layer.weights.kernel[:, [0, 2, 3]] == 0).all()
    np.testing.assert_allclose(bounds[0, 0], 0.25 - 0.3 / 0.5 * 2, rtol=1e-6)


def test_what_follows_is_fused_too(tmp_path: Path) -> None:
    proto = dense_net(
        NORM,
        RELU,
        node("Conv", "r w", "c", "conv"),
        node("BatchNormalization", "c a b k l", "d"),
        node("Relu", "d", "y"),
        a=values(5, seed=1),
        b=values(5, seed=2),
        k=values(5, seed=3),
        l=np.abs(values(5, seed=4)) + 1,
    )
    [layer] = read(tmp_path, proto).layers
    assert layer.spec.epilogue == (Clip(low=0.0),)
    x = values(2, 6, 8, 8, seed=5)
    np.testing.assert_allclose(layer_output(layer.spec, layer.weights, x), expected(proto, x), rtol=1e-5, atol=1e-5)


def test_weights_with_bounds_are_read_back_and_change_the_digest(tmp_path: Path) -> None:
    [layer] = read(tmp_path, dense_net(NORM, RELU, CONV)).layers
    data = layer.weights.to_bytes()
    again = Weights.from_bytes(layer.spec, data)
    assert again.to_bytes() == data
    assert again.bounds is not None
    np.testing.assert_array_equal(again.bounds, layer.weights.bounds)
    assert Weights(layer.weights.kernel, layer.weights.bias).digest != layer.weights.digest
    with pytest.raises(ValueError, match="bytes of weights"):
        Weights.from_bytes(plain(layer.spec), data)


def test_the_full_form_does_not_do_for_it(tmp_path: Path) -> None:
    [layer] = read(tmp_path, dense_net(NORM, RELU, CONV)).layers
    nonzeros = layer.weights.nonzeros_per_output
    assert choose_tiling(layer.spec, 1, nonzeros).form == "rolled"
    with pytest.raises(TilingError, match="without input bounds, gates or a pool: leave out --template full"):
        choose_tiling(layer.spec, 1, nonzeros, form="full")


def test_ptxas_assembles_a_bounded_layer_though_the_value_patch_is_asked_for(tmp_path: Path) -> None:
    [layer] = read(tmp_path, dense_net(NORM, RELU, CONV)).layers
    tiling = choose_tiling(layer.spec, 1, layer.weights.nonzeros_per_output)
    assert assembler_for("patch", layer.spec, tiling, "sm_90", "13.1")[0] == "ptxas"
    assert assembler_for("direct", layer.spec, tiling, "sm_90", "13.1")[0] == "direct"


LEFT: dict[str, list[onnx.NodeProto]] = {
    "a kernel with padding": [NORM, RELU, node("Conv", "r wide", "y", pads=[1, 1, 1, 1])],
    "a 1x1 kernel with padding": [NORM, RELU, node("Conv", "r w", "y", pads=[1, 1, 1, 1])],
    "a stride": [NORM, RELU, node("Conv", "r w", "y", strides=[2, 2])],
    "groups": [NORM, RELU, node("Conv", "r grouped", "y", group=2)],
    "no Relu": [NORM, node("Conv", "n w", "y")],
    "another activation": [NORM, node("Sigmoid", "n", "r"), CONV],
    "two readers": [NORM, RELU, node("Conv", "r w", "c"), node("Conv", "r w", "d"), node("Add", "c d", "y")],
    "a residual of the same": [NORM, RELU, node("Conv", "r square", "c"), node("Add", "c r", "y")],
    "a normalisation that another reads": [NORM, RELU, node("Conv", "r square", "c"), node("Mul", "c n", "y")],
    "statistics of the batch": [
        node("BatchNormalization", "x s t z2 v", "n", "norm"), RELU, CONV
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_a_normalisation_before_anything_else_is_left(name: str, tmp_path: Path) -> None:
    proto = dense_net(*LEFT[name], wide=values(5, 6, 3, 3), grouped=values(4, 3, 1, 1), square=values(6, 6, 1, 1))
    proto.graph.input.append(info("z2", (6,)))
    assert not any(is_bounded(layer.spec) for layer in read(tmp_path, proto).layers)


def test_one_that_follows_a_layer_belongs_to_that(tmp_path: Path) -> None:
    nodes = [node("Conv", "z first", "x2"), node("BatchNormalization", "x2 s t m v", "n"), RELU, CONV]
    first, second = read(tmp_path, dense_net(*nodes, first=values(6, 6, 1, 1))).layers
    assert first.spec.epilogue == (Clip(low=0.0),)
    assert isinstance(second.spec, Conv2d)
    assert not second.spec.bounded


@pytest.mark.parametrize("data_type", [np.float16])
def test_half_precision_is_left(data_type: Any, tmp_path: Path) -> None:
    tensors = {"w": values(5, 6, 1, 1), "s": SCALES, "t": SHIFTS, "m": MEAN, "v": VARIANCE}
    halves = [onnx.numpy_helper.from_array(each.astype(data_type), name) for name, each in tensors.items()]
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, ("N", 6, 8, 8))
    [layer] = read(tmp_path, model([NORM, RELU, CONV], halves, inputs=[x])).layers
    assert not is_bounded(layer.spec)
    assert layer.weights.bounds is None
