"""Division of networks into subgraphs that the C runtime runs, and operators that PyTorch runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from codegen.frontend.onnx.export.network import Network, read_network
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.layer_spec import LayerSpec
from farm.runtime.plan import LayerStep
from farm.torch.packages.subgraphs import SUBGRAPH, Subgraph, divide
from tests.unit.onnx_models import branched_network, info, model, node, save, squeeze_and_excitation, tensor, values


def opened(path: Path) -> tuple[Network, dict[str, LayerSpec]]:
    """A model's network with all layers compiled, and their specs."""
    checkpoint = read_checkpoint(path)
    assert checkpoint.residual_graph is not None
    network = read_network(checkpoint.residual_graph.with_layers(checkpoint.layers))
    return network, {layer.name: layer.spec for layer in checkpoint.layers}


def steps_of(subgraph: Subgraph) -> list[str]:
    steps = subgraph.planned.plan.steps
    return [step.layer if isinstance(step, LayerStep) else step.kernel for step in steps]


def test_layers_and_exact_operators_between_them_are_one_subgraph(tmp_path: Path) -> None:
    network, subgraphs = divide(*opened(branched_network(tmp_path)))
    (subgraph,) = subgraphs.values()
    assert [each.operator for each in network.nodes] == [SUBGRAPH, "Softmax"]
    copies = ["copy_float32", "copy_float32", "max_pool_2x2_float32"]
    assert steps_of(subgraph) == ["conv1", "conv2", *copies, "fc"]


def test_an_operator_with_additions_of_its_own_divides_subgraphs(tmp_path: Path) -> None:
    network, subgraphs = divide(*opened(squeeze_and_excitation(tmp_path)))
    first, second = subgraphs.values()
    mean = "GlobalAveragePool"
    assert [each.operator for each in network.nodes] == [SUBGRAPH, mean, SUBGRAPH, mean]
    assert (steps_of(first), steps_of(second)) == (["depthwise"], ["squeeze", "excite", "project"])
    assert [each.inputs for each in network.nodes] == [("x",), ("h",), ("mean", "h", "x"), ("sum",)]


def test_a_tensor_that_several_read_leaves_its_subgraph(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a", "conv1"), node("Conv", "a w", "b", "conv2"), node("Sigmoid", "a", "s")]
    nodes += [node("Mul", "s b", "m"), node("Conv", "m w", "y", "conv3")]
    proto = model(nodes, [tensor("w", values(2, 2, 1, 1))], inputs=[info("x", ("N", 2, 3, 3))])
    network, subgraphs = divide(*opened(save(tmp_path, proto)))
    first, second = subgraphs.values()
    assert [each.outputs for each in network.nodes] == [("a", "b"), ("s",), ("m",), ("y",)]
    assert (steps_of(first), steps_of(second)) == (["conv1", "conv2"], ["conv3"])


def test_a_subgraph_of_which_a_shape_is_unknown_is_run_layer_by_layer(tmp_path: Path) -> None:
    network, specs = opened(squeeze_and_excitation(tmp_path))
    divided, subgraphs = divide(replace(network, shapes={}), specs)
    assert [steps_of(each) for each in subgraphs.values()] == [[name] for name in specs]
    layers = [each.inputs for each in divided.nodes if each.operator == SUBGRAPH]
    assert layers == [("x",), ("mean",), ("t",), ("h", "x", "gates")]


def test_a_layer_of_another_data_type_ends_a_subgraph_of_several(tmp_path: Path) -> None:
    network, specs = opened(branched_network(tmp_path))
    mixed = {**specs, "fc": replace(specs["fc"], data_type="float16")}
    _, subgraphs = divide(network, mixed)
    assert [steps_of(each) for each in subgraphs.values()] == [["conv1", "conv2"], ["fc"]]


def test_inputs_that_may_have_different_numbers_of_images_share_no_subgraph(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a", "conv1"), node("Conv", "z w", "b", "conv2")]
    inputs = [info("x", ("N", 2, 3, 3)), info("z", ("M", 2, 3, 3))]
    proto = model(nodes, [tensor("w", values(2, 2, 1, 1))], inputs=inputs)
    del proto.graph.output[:]
    proto.graph.output.extend([info("a", ("N", 2, 3, 3)), info("b", ("M", 2, 3, 3))])
    _, subgraphs = divide(*opened(save(tmp_path, proto)))
    assert sorted(map(steps_of, subgraphs.values())) == [["conv1"], ["conv2"]]
