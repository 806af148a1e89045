"""Whole networks as modules: the compiled layers played by the reference, the rest in PyTorch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from codegen.errors import DeviceError
from codegen.frontend.onnx.export.network import Network, read_network
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint, Layer
from codegen.ir.layer_spec import Linear, plain
from codegen.model_zoo import NETWORKS, write_network
from codegen.verification.dot_products import gated_input
from codegen.verification.reference import layer_output
from farm.bench.networks.torch_timing import dense_network
from farm.bundle.reader import Bundle, BundledLayer
from farm.errors import UsageError
from farm.torch import capture, load
from farm.torch.layer import output_shape
from farm.torch.module import module_of
from tests.torch.bundles import as_compiled, fetched, whole_bundle
from tests.unit.onnx_models import constants, info, model, node, save, sequence_network, values

SHAPES = {"lenet5": (1, 28, 28), "alexnet_cifar10": (3, 32, 32), "mlp": (1, 28, 28)}


def played(
    layer: Layer,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    output: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """The output of the layer's kernels."""
    spec = layer.spec
    shape = output_shape(spec, x.shape)
    rows = (-1, spec.inputs) if isinstance(spec, Linear) else (len(x), *spec.input_shape)
    outputs = (-1, spec.outputs) if isinstance(spec, Linear) else (len(x), *spec.output_shape)
    added = None if residual is None else residual.numpy().reshape(outputs)
    inputs = x.numpy().reshape(rows)
    inputs = inputs if gate is None else gated_input(spec, inputs, gate.numpy())
    computed = layer_output(plain(spec), layer.weights, inputs, residual=added)
    found = torch.from_numpy(computed.astype(np.float32).reshape(shape)).to(x.dtype)
    return found if output is None else output.copy_(found)


def module_read(tmp_path: Path, name: str, batch: int) -> tuple[torch.nn.Module, onnx.ModelProto, np.ndarray]:
    path = tmp_path / "net.onnx"
    write_network(path, NETWORKS[name](0.9, 0))
    checkpoint: Checkpoint = read_checkpoint(path)
    assert checkpoint.residual_graph is not None
    network = read_network(checkpoint.residual_graph.with_layers(checkpoint.layers))
    bundled = {each.name: BundledLayer(each.name, each.spec, bool(each.residual), ()) for each in checkpoint.layers}
    module = module_of(network, bundled, {each.name: partial(played, each) for each in checkpoint.layers})
    x = np.random.default_rng(0).standard_normal((batch, *SHAPES[name]), np.float32)
    return module, onnx.load(path), x


@pytest.mark.parametrize(("name", "batch"), [("lenet5", 1), ("lenet5", 3), ("alexnet_cifar10", 2), ("mlp", 5)])
def test_a_network_computes_what_its_model_does(tmp_path: Path, name: str, batch: int) -> None:
    import onnxruntime

    module, model, x = module_read(tmp_path, name, batch)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    [expected] = session.run(None, {"input": x})
    with torch.inference_mode():
        found = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_weights_that_are_left_are_read_from_beside_the_network(tmp_path: Path) -> None:
    import onnxruntime

    path = tmp_path / "net.onnx"
    write_network(path, NETWORKS["lenet5"](0.9, 0))
    checkpoint = read_checkpoint(path)
    bundle = Bundle(whole_bundle(tmp_path / "net.farm", checkpoint, batch=64, code_limit_bytes=500_000))
    assert "fc1" not in bundle.layers
    compute = {each.name: partial(played, each) for each in as_compiled(bundle, checkpoint)}
    x = np.random.default_rng(0).standard_normal((3, 1, 28, 28), np.float32)
    with torch.inference_mode():
        found = module_of(bundle.network, bundle.layers, compute)(torch.from_numpy(x)).numpy()
    [expected] = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"input": x})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_dynamically_quantized_network_computes_what_its_model_does(tmp_path: Path) -> None:
    import onnxruntime
    from onnxruntime.quantization import quantize_dynamic

    nodes = [node("MatMul", "x w", "h", "first"), node("Relu", "h", "t"), node("MatMul", "t v", "y", "second")]
    given = constants(w=values(24, 40), v=values(40, 8, seed=1))
    quantize_dynamic(save(tmp_path, model(nodes, given, inputs=[info("x", ("N", 24))])), tmp_path / "dynamic.onnx")
    checkpoint = read_checkpoint(tmp_path / "dynamic.onnx")
    assert checkpoint.residual_graph is not None
    network = read_network(checkpoint.residual_graph.with_layers(checkpoint.layers))
    bundled = {each.name: BundledLayer(each.name, each.spec, bool(each.residual), ()) for each in checkpoint.layers}
    module = module_of(network, bundled, {each.name: partial(played, each) for each in checkpoint.layers})
    x = values(5, 24, seed=2)
    [expected] = onnxruntime.InferenceSession(str(tmp_path / "dynamic.onnx")).run(None, {"x": x})
    with torch.inference_mode():
        np.testing.assert_allclose(module(torch.from_numpy(x)).numpy(), expected, rtol=1e-4, atol=1e-4)


def of_any_sizes(network: Network) -> Network:
    """The network with open input sizes, so that only the layers check them."""
    return replace(network, inputs=tuple(replace(each, shape=()) for each in network.inputs))


def test_a_residual_may_have_the_shape_that_the_model_gives_the_output(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c", "conv"), node("Reshape", "c s", "d"), node("Add", "d r", "y")]
    tensors = constants(w=values(4, 3, 3, 3), s=np.array([-1, 4, 9]))
    proto = model(nodes, tensors, inputs=[info("x", (2, 3, 5, 5)), info("r", (2, 4, 9))])
    checkpoint = read_checkpoint(save(tmp_path, proto))
    [layer] = checkpoint.layers
    assert (layer.residual, layer.output) == ("r", "y")
    assert checkpoint.residual_graph is not None
    network = of_any_sizes(read_network(checkpoint.residual_graph.with_layers(checkpoint.layers)))
    module = module_of(network, {"conv": BundledLayer("conv", layer.spec, True, ())}, {"conv": partial(played, layer)})
    x, r = (torch.from_numpy(values(*shape, seed=1)) for shape in ((2, 3, 5, 5), (2, 4, 9)))
    expected = torch.nn.functional.conv2d(x, torch.from_numpy(values(4, 3, 3, 3))).reshape(2, 4, 9) + r
    torch.testing.assert_close(module(x, r), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"its residual is \[2, 4, 8\], its output is \[2, 4, 3, 3\]"):
        module(x, r[:, :, :8])


@pytest.mark.parametrize("shape", [(2, 6, 5, 4), (3, 6, 7)])
def test_a_gate_goes_to_the_layer_with_or_without_a_residual(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images, *places = shape[0], *shape[2:]
    ones = [1] * len(places)
    nodes = [node("Mul", "x g", "p"), node("Conv", "p w", "c", "first"), node("Relu", "c", "d")]
    nodes += [node("Mul", "d h", "q"), node("Conv", "q v", "e", "second"), node("Add", "e x", "y")]
    tensors = constants(w=values(5, 6, *ones), v=values(6, 5, *ones))
    inputs = [info("x", shape), info("g", (images, 6, *ones)), info("h", (images, 5, *ones))]
    checkpoint = read_checkpoint(save(tmp_path, model(nodes, tensors, inputs=inputs)))
    assert [(layer.gate, layer.residual) for layer in checkpoint.layers] == [("g", ""), ("h", "x")]
    assert checkpoint.residual_graph is not None
    network = of_any_sizes(read_network(checkpoint.residual_graph.with_layers(checkpoint.layers)))
    bundled = {each.name: BundledLayer(each.name, each.spec, bool(each.residual), ()) for each in checkpoint.layers}
    module = module_of(network, bundled, {each.name: partial(played, each) for each in checkpoint.layers})
    x, g, h = (torch.from_numpy(values(images, *size, seed=1)) for size in (shape[1:], (6, *ones), (5, *ones)))
    wanted = torch.einsum("nc...,kc->nk...", x * g, torch.from_numpy(values(5, 6))).relu() * h
    wanted = torch.einsum("nc...,kc->nk...", wanted, torch.from_numpy(values(6, 5))) + x
    torch.testing.assert_close(module(x, g, h), wanted, rtol=1e-4, atol=1e-5)
    dense = dense_network(checkpoint, ["first", "second"])
    torch.testing.assert_close(dense(x, g, h), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=rf"layer first: its gate is \[{images - 1}, 6, .*, its input \[{images}, 6, "):
        module(x, g[1:], h)


def test_a_network_can_be_exported_with_its_layers_as_operators(tmp_path: Path) -> None:
    module, _, x = module_read(tmp_path, "lenet5", 2)
    program = torch.export.export(module, (torch.from_numpy(x),))
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert called.count(torch.ops.farm.layer.default) == 4
    found = program.module()(torch.from_numpy(x))
    torch.testing.assert_close(found, module(torch.from_numpy(x)))


def test_a_layer_refuses_what_it_was_not_compiled_for(tmp_path: Path) -> None:
    module, _, x = module_read(tmp_path, "lenet5", 2)
    with pytest.raises(TypeError, match=r"layer conv1 takes float32 and its input is torch\.float64: convert it"):
        module(torch.from_numpy(x).double())
    with pytest.raises(
        UsageError, match=r"'input' has the shape \[2, 1, 27, 28\], and the model takes \[N, 1, 28, 28\]"
    ):
        module(torch.from_numpy(x)[:, :, :27])


def test_inputs_that_are_not_contiguous_are_copied(tmp_path: Path) -> None:
    module, _, x = module_read(tmp_path, "alexnet_cifar10", 2)
    given = torch.from_numpy(x)
    turned = given.to(memory_format=torch.channels_last)
    assert not turned.is_contiguous()
    torch.testing.assert_close(module(turned), module(given))


def test_operators_that_are_not_run_are_named(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    write_network(path, NETWORKS["lenet5"](0.9, 0))
    checkpoint = read_checkpoint(path)
    assert checkpoint.residual_graph is not None
    network = read_network(checkpoint.residual_graph.with_layers(checkpoint.layers))
    strange = replace(network, nodes=tuple(replace(each, operator="Grid" + each.operator) for each in network.nodes))
    with pytest.raises(UsageError, match=r"farm\.torch does not support GridFlatten, GridMaxPool: use another runtime"):
        module_of(strange, {}, {})


def test_a_captured_network_on_the_cpu_is_the_network_itself() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    x = torch.randn(4, 3)
    torch.testing.assert_close(capture(net)(x), net(x), rtol=0, atol=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_loading_says_so(tmp_path: Path) -> None:
    bundle = fetched(tmp_path)
    with pytest.raises(DeviceError, match="GPUs only, and PyTorch finds none"):
        load(bundle)
    with pytest.raises(DeviceError, match="GPUs only, not on the device cpu"):
        load(bundle, device="cpu")


def uncompiled(tmp_path: Path, nodes: list[onnx.NodeProto], shape: tuple[int | str, ...], **named: np.ndarray) -> Path:
    """A model without layers to compile."""
    return save(tmp_path, model(nodes, constants(**named), inputs=[info("x", shape)], output="y"))


def module_of_model(path: Path) -> tuple[torch.nn.Module, onnx.ModelProto]:
    return module_of(read_network(path.read_bytes()), {}, {}), onnx.load(path)


INTEGERS = partial(np.array, dtype=np.int64)
OF_SHAPES: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray]]] = {
    "channels shuffled": (
        [
            *[
                node("Shape", "x", "s"),
                node("Gather", "s i0", "n"),
                node("Gather", "s i1", "c"),
                node("Div", "c two", "h"),
            ],
            *[node("Unsqueeze", f"{name} axes", f"{name}1") for name in ("n", "h")],
            node("Concat", "n1 group h1 left", "sizes", axis=0),
            *[node("Reshape", "x sizes", "r"), node("Transpose", "r", "t", perm=[0, 2, 1, 3, 4])],
            *[node("Concat", "n1 minus left", "back", axis=0), node("Reshape", "t back", "y")],
        ],
        {
            "i0": INTEGERS(0),
            "i1": INTEGERS(1),
            "two": INTEGERS(2),
            "axes": INTEGERS([0]),
            "group": INTEGERS([2]),
            "left": INTEGERS([5, 6]),
            "minus": INTEGERS([-1]),
        },
    ),
    "expanded by a constant of a shape": (
        [
            *[
                node("Shape", "x", "s"),
                node("ConstantOfShape", "r", "ones", value=numpy_helper.from_array(INTEGERS([1]))),
            ],
            node("Mul", "ones minus", "m"),
            *[node("Equal", "given m", "e"), node("Where", "e ones given", "sizes")],
            *[node("Expand", "b sizes", "z"), node("Shape", "z", "zs"), node("Reshape", "z zs", "w")],
            node("Add", "x w", "y"),
        ],
        {
            "r": INTEGERS([4]),
            "minus": INTEGERS([-1]),
            "given": INTEGERS([-1, 4, 1, 1]),
            "b": values(4, 1, 1),
            "two": INTEGERS([2]),
            "four": INTEGERS([4]),
        },
    ),
    "places of a range": (
        [
            *[node("Shape", "x", "s"), node("Gather", "s last", "w"), node("Range", "zero w one", "places")],
            *[node("Cast", "places", "f", to=1), node("Add", "x f", "a"), node("Cast", "s", "sf", to=1)],
            *[node("ReduceProd", "sf", "count", keepdims=0), node("Div", "a count", "y")],
        ],
        {"last": INTEGERS(3), "zero": INTEGERS(0), "one": INTEGERS(1)},
    ),
    "mirrored and reversed": (
        [node("Pad", "x pads", "p", mode="reflect"), node("Slice", "p begin end axis step", "y")],
        {
            "pads": INTEGERS([0, 0, 1, 2, 0, 0, 2, 1]),
            "begin": INTEGERS([-1]),
            "end": INTEGERS([-(2**40)]),
            "axis": INTEGERS([3]),
            "step": INTEGERS([-2]),
        },
    ),
}


@pytest.mark.parametrize("name", OF_SHAPES)
def test_what_follows_from_shapes_is_computed_without_the_gpu(tmp_path: Path, name: str) -> None:
    """A tensor on PyTorch's meta device has no elements: code that reads one, or mixes it with the CPU's, fails."""
    nodes, named = OF_SHAPES[name]
    module, proto = module_of_model(uncompiled(tmp_path, nodes, ("N", 4, 5, 6), **named))
    x = values(3, 4, 5, 6)
    [wanted] = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(module(torch.from_numpy(x)).numpy(), wanted, rtol=1e-5, atol=1e-6)
    elsewhere = module.to("meta")(torch.from_numpy(x).to("meta"))
    assert (elsewhere.device.type, elsewhere.shape) == ("meta", wanted.shape)


@pytest.mark.parametrize("name", sorted(OF_SHAPES.keys() - {"places of a range"}))  # which are floats
def test_torch_compile_follows_shapes_with_an_open_batch_in_one_graph(tmp_path: Path, name: str) -> None:
    nodes, named = OF_SHAPES[name]
    module, _ = module_of_model(uncompiled(tmp_path, nodes, ("N", 4, 5, 6), **named))
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for batch in (3, 5, 7):  # from the second on, the batch is open
        x = torch.from_numpy(values(batch, 4, 5, 6))
        torch.testing.assert_close(compiled(x), module(x))


def test_sizes_places_and_a_recurrent_layer_are_computed_as_the_model_says(tmp_path: Path) -> None:
    path = sequence_network(tmp_path)
    checkpoint = read_checkpoint(path)
    assert checkpoint.residual_graph is not None
    network = read_network(checkpoint.residual_graph.with_layers(checkpoint.layers))
    bundled = {each.name: BundledLayer(each.name, each.spec, bool(each.residual), ()) for each in checkpoint.layers}
    assert set(bundled) == {"conv", "fc"}
    module = module_of(network, bundled, {each.name: partial(played, each) for each in checkpoint.layers})
    x = values(3, 4, 8, 8)
    [wanted] = ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})
    np.testing.assert_allclose(module(torch.from_numpy(x)).numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_a_model_of_one_image_refuses_eight(tmp_path: Path) -> None:
    module, _ = module_of_model(uncompiled(tmp_path, [node("Relu", "x", "y")], (1, 4, 5, 6)))
    with pytest.raises(UsageError, match=r"'x' has the shape \[8, 4, 5, 6\], and the model takes \[1, 4, 5, 6\]"):
        module(torch.zeros(8, 4, 5, 6))
