"""ONNX reader: channel gates before a layer are multiplied in by its kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from codegen.errors import TilingError
from codegen.frontend.onnx.export.network import read_network
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint, Layer
from codegen.ir.layer_spec import AddResidual, Clip, Conv2d, is_gated, plain
from codegen.kernels import tiled
from codegen.kernels.workload import BLOCK_SHARED_BYTES
from codegen.model_zoo.pruning import random_weights
from codegen.sass.qualification import assembler_for
from codegen.selection.choose import choose_tiling
from codegen.target.arch import has_clusters
from codegen.verification.dot_products import gated_input
from codegen.verification.reference import layer_output
from tests.unit.onnx_models import constants, info, layer_of, model, node, save, tensors_of, values

MUL = node("Mul", "x g", "p", "gate")
CONV = node("Conv", "p w", "y", "conv")


def gated_net(
    *nodes: onnx.NodeProto, x: Any = ("N", 6, 8, 7), g: Any = ("N", 6, 1, 1), **arrays: Any
) -> onnx.ModelProto:
    """A model with the read ones of the inputs x [N, 6, 8, 7], g [N, 6, 1, 1] and r [N, 5, 8, 7]; w is [5, 6, 1, 1]."""
    tensors = {"w": values(5, 6, 1, 1), **arrays}
    read = {name for each in nodes for name in each.input}
    inputs = [info(name, shape) for name, shape in (("x", x), ("g", g), ("r", ("N", 5, 8, 7))) if name in read]
    return model(list(nodes), constants(**tensors), inputs=inputs)


def read(folder: Path, proto: onnx.ModelProto) -> Checkpoint:
    return read_checkpoint(save(folder, proto))


def computed(layer: Layer, x: np.ndarray, gate: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
    return layer_output(plain(layer.spec), layer.weights, gated_input(layer.spec, x, gate), residual=residual)


@pytest.mark.parametrize("inputs", ["x g", "g x"])
def test_the_gate_is_in_the_layer_and_computes_what_the_model_does(inputs: str, tmp_path: Path) -> None:
    proto = gated_net(node("Mul", inputs, "p", "gate"), CONV, node("Exp", "y", "e"))
    proto.graph.output[0].name = "e"
    checkpoint = read(tmp_path, proto)
    [layer] = checkpoint.layers
    assert is_gated(layer.spec)
    assert (layer.input, layer.gate, layer.residual, layer.output) == ("x", "g", "", "y")
    assert layer.folded == ("Mul gate",)
    x, g = values(3, 6, 8, 7, seed=4), values(3, 6, 1, 1, seed=5)
    [expected] = tensors_of(proto, ["y"], x=x, g=g)
    np.testing.assert_allclose(computed(layer, x, g), expected, rtol=1e-5, atol=1e-5)
    assert checkpoint.residual_graph is not None
    network = read_network(checkpoint.residual_graph.with_layers(checkpoint.layers))
    assert [(each.operator, each.inputs) for each in network.nodes] == [("Layer", ("x", "", "g")), ("Exp", ("y",))]


def test_what_follows_is_fused_too(tmp_path: Path) -> None:
    proto = gated_net(MUL, node("Conv", "p w", "c", "conv"), node("Add", "c r", "a", "add"), node("Relu", "a", "y"))
    layer = layer_of(tmp_path, proto)
    assert (layer.gate, layer.residual, layer.spec.epilogue) == ("g", "r", (AddResidual(), Clip(low=0.0)))
    x, g, r = values(3, 6, 8, 7, seed=4), values(3, 6, 1, 1, seed=5), values(3, 5, 8, 7, seed=6)
    [expected] = tensors_of(proto, ["y"], x=x, g=g, r=r)
    np.testing.assert_allclose(computed(layer, x, g, r), expected, rtol=1e-5, atol=1e-5)


def test_a_gate_may_be_computed_by_compiled_layers(tmp_path: Path) -> None:
    proto = gated_net(
        node("GlobalAveragePool", "x", "mean"),
        node("Conv", "mean squeeze", "s", "squeeze"),
        node("Relu", "s", "t"),
        node("Conv", "t excite", "u", "excite"),
        node("Sigmoid", "u", "gates"),
        node("Mul", "gates x", "p", "gate"),
        CONV,
        squeeze=values(2, 6, 1, 1, seed=1),
        excite=values(6, 2, 1, 1, seed=2),
    )
    layers = {layer.name: layer for layer in read(tmp_path, proto).layers}
    assert list(layers) == ["squeeze", "excite", "conv"]
    assert (layers["conv"].input, layers["conv"].gate) == ("x", layers["excite"].output)
    assert not is_gated(layers["excite"].spec)


def test_two_layers_in_a_row_have_a_gate_each(tmp_path: Path) -> None:
    proto = gated_net(
        MUL, node("Conv", "p v", "c", "first"), node("Mul", "c g", "d", "again"), node("Conv", "d w", "y", "second"),
        v=values(6, 6, 1, 1),
    )  # fmt: skip
    first, second = read(tmp_path, proto).layers
    assert (first.gate, first.output, second.input, second.gate) == ("g", "c", "c", "g")


@pytest.mark.parametrize("shape", [("N", 6, 9), (1, 6, 9)])
def test_the_gate_of_a_1_d_convolution_has_one_place(shape: Any, tmp_path: Path) -> None:
    proto = gated_net(MUL, CONV, x=shape, g=(*shape[:2], 1), w=values(5, 6, 1))
    layer = layer_of(tmp_path, proto)
    assert (layer.gate, is_gated(layer.spec)) == ("g", True)


@pytest.mark.parametrize(
    ("groups", "kernel", "gated"), [(2, (6, 3, 1, 1), True), (6, (6, 1, 1, 1), False), (6, (12, 1, 1, 1), False)]
)
def test_groups_are_gated_and_depthwise_kernels_are_not(
    groups: int, kernel: tuple[int, ...], gated: bool, tmp_path: Path
) -> None:
    layer = layer_of(tmp_path, gated_net(MUL, node("Conv", "p w", "y", "conv", group=groups), w=values(*kernel)))
    assert is_gated(layer.spec) is gated


LEFT: dict[str, onnx.ModelProto] = {
    "another reader of the product": gated_net(MUL, CONV, node("Add", "p x", "z")),
    "the product is an output": gated_net(node("Mul", "x g", "y", "gate"), node("Conv", "y w", "z", "conv")),
    "both of one shape": gated_net(MUL, CONV, g=("N", 6, 8, 7)),
    "a number for each place": gated_net(MUL, CONV, g=("N", 1, 8, 7)),
    "a number for each image": gated_net(MUL, CONV, g=("N", 1, 1, 1)),
    "one gate for all images": gated_net(MUL, CONV, g=(1, 6, 1, 1)),
    "images that are not known to be as many": gated_net(MUL, CONV, g=("M", 6, 1, 1)),
    "fewer dimensions": gated_net(MUL, CONV, g=(6, 1, 1)),
    "a column for each channel": gated_net(MUL, CONV, g=("N", 6, 8, 1)),
    "maps of one place": gated_net(MUL, CONV, x=("N", 6, 1, 1)),
    "a sum": gated_net(node("Add", "x g", "p", "gate"), CONV),
    "a square": gated_net(node("Mul", "x x", "p", "gate"), CONV),
    "a kernel of 3x3": gated_net(MUL, CONV, w=values(5, 6, 3, 3)),
    "padding": gated_net(MUL, node("Conv", "p w", "y", "conv", pads=[0, 1, 0, 0])),
    "transposed": gated_net(MUL, node("ConvTranspose", "p w", "y", "conv"), w=values(6, 5, 1, 1)),
    "more channels than have room": gated_net(
        MUL, CONV, x=("N", 5000, 4, 4), g=("N", 5000, 1, 1), w=values(2, 5000, 1, 1)
    ),
}


@pytest.mark.parametrize("what", LEFT)
def test_the_product_is_computed_before_the_layer(what: str, tmp_path: Path) -> None:
    proto = LEFT[what]
    layer = layer_of(tmp_path, proto)
    assert layer.gate == ""
    assert not is_gated(layer.spec)
    assert layer.input in ("p", "y")


def test_a_gate_is_multiplied_in_before_a_normalisation_would_be(tmp_path: Path) -> None:
    proto = gated_net(
        node("BatchNormalization", "x s s s s", "n"),
        node("Relu", "n", "h"),
        node("Mul", "h g", "p", "gate"),
        CONV,
        s=np.ones(6, np.float32),
    )
    layer = layer_of(tmp_path, proto)
    assert (layer.input, layer.folded, layer.weights.bounds) == ("h", ("Mul gate",), None)


def test_two_models_that_differ_in_the_gate_are_no_equal_ones(tmp_path: Path) -> None:
    nodes = [node("Exp", "g", "h"), node("Add", "h g", "i")]
    first, second = (
        read(tmp_path, gated_net(*nodes, node("Mul", f"x {gate}", "p", "gate"), CONV)) for gate in ("h", "i")
    )
    assert first.digest != second.digest


SPEC = Conv2d(1152, 7, 7, 320, 1, 1, gated=True)


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_gates_have_room_in_the_shared_memory_of_whatever_is_chosen(batch: int, arch: str) -> None:
    nonzeros = random_weights(SPEC, 0.9).nonzeros_per_output
    tiling = choose_tiling(SPEC, batch, nonzeros, clusters=has_clusters(arch))
    gated, without = (tiled(spec, tiling).launch for spec in (SPEC, plain(SPEC)))
    assert gated.arguments == ("input", "output", "gate", "images", "output_step")
    gates_bytes = 4 * SPEC.channels // tiling.cluster * tiling.images
    assert BLOCK_SHARED_BYTES >= gated.shared_bytes >= without.shared_bytes + gates_bytes


def test_a_gated_layer_takes_longer_than_a_plain_one() -> None:
    from codegen.selection.cost_model import predict_microseconds

    tiling = choose_tiling(SPEC, 64, random_weights(SPEC, 0.9).nonzeros_per_output)
    gated, without = (predict_microseconds(tiled(spec, tiling), 64, 0.1) for spec in (SPEC, plain(SPEC)))
    assert without < gated < 2 * without


def test_the_full_form_does_not_do_for_it() -> None:
    with pytest.raises(TilingError, match="without input bounds, gates or a pool: leave out --template full"):
        choose_tiling(SPEC, 1, random_weights(SPEC, 0.9).nonzeros_per_output, form="full")


def test_the_assembler_does_it_but_for_float16() -> None:
    tiling = choose_tiling(SPEC, 64, random_weights(SPEC, 0.9).nonzeros_per_output)
    assert assembler_for("direct", SPEC, tiling, "sm_90", "13.1") == ("direct", "")
    halves = replace(SPEC, data_type="float16")
    assert assembler_for("direct", halves, tiling, "sm_90", "13.1") == (
        "ptxas",
        "the direct assembler does not support float16 channel gates",
    )


def test_the_reference_is_given_the_product() -> None:
    weights = random_weights(SPEC, 0.9)
    with pytest.raises(ValueError, match="multiply its input with `gated_input`"):
        layer_output(SPEC, weights, values(1, 1152, 7, 7))
